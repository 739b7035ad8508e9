"""`flowdist graph`: a drawing of the role graph."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click

from flowdist.cli.shared.common import format_of, load, print_json, verb, write
from flowdist.cli.shared.options import TopologyOptions, topology_options
from flowdist.errors import FlowdistError
from flowdist.report.static.drawing import DRAWERS, dot, graph_of

FORMATS = ("mermaid", "dot", "svg", "png")
SUFFIXES = {".mmd": "mermaid", ".mermaid": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png"}
DRAWING_S_MAX = 60


@verb("graph")
@topology_options
@click.option("--format", "wanted", type=click.Choice(FORMATS), help="Default: the suffix of FILE, else mermaid.")
@click.option("-o", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE (default: stdout).")
def command(named: TopologyOptions, wanted: str | None, file: str | None) -> None:
    """Draw the role graph: roles with kind, size and resources, gates as arrows, restart domains as boxes.

    \b
    flowdist graph                   Mermaid, on stdout
    flowdist graph -o graph.dot      the dot language of graphviz
    flowdist graph -o graph.svg      an image: svg or png, drawn by graphviz
    """
    if named.as_json and (wanted is not None or file is not None):
        raise FlowdistError("--json does not go with --format or -o", help="leave out one or the other")
    form = wanted or ("mermaid" if file is None else format_of(file, SUFFIXES))
    if form == "png" and file is None:
        raise FlowdistError("png cannot be shown on a terminal", help="name a file: -o graph.png")
    graph = load(named).graph
    if named.as_json:
        print_json("graph", **graph_of(graph))
        return
    content = DRAWERS[form](graph).encode() if form in ("mermaid", "dot") else _draw(dot(graph), form)  # type: ignore[index]
    if file is None:
        click.echo(content.decode(), nl=False)
        return
    write(Path(file), content)


def _draw(text: str, form: str) -> bytes:
    """Return the image that graphviz draws from a text in its dot language; `form` is svg or png.

    Raises:
        FlowdistError: Graphviz is not installed, or fails.
    """
    otherwise = "or take --format mermaid or dot"
    program = shutil.which("dot")
    if program is None:
        help = f"install graphviz (apt install graphviz, brew install graphviz), {otherwise}"
        raise FlowdistError(f"{form} is drawn by graphviz, whose program 'dot' is not installed", help=help)
    try:
        done = subprocess.run(
            [program, f"-T{form}"], input=text.encode(), capture_output=True, check=False, timeout=DRAWING_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FlowdistError(f"{program} did not draw the graph: {error}", help=otherwise) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[0] if lines else f"exit code {done.returncode}"
        raise FlowdistError(f"{program} did not draw the graph: {why}", help=otherwise)
    return done.stdout
