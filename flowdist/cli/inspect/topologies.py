"""Verbs about a topology before anything runs: its problems, its plan, a drawing, and what a failure would do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

from flowdist.cli.shared.common import format_of, load, print_json, problems_json, show_problems, verb, write
from flowdist.cli.shared.engines import EngineOptions, engine_options, problems_on
from flowdist.cli.shared.options import TopologyOptions, topology_options
from flowdist.dsl.load import DEFAULT_FILE
from flowdist.errors import FlowdistError
from flowdist.graph import encode_graph
from flowdist.report.static.drawing import dot, graph_of, mermaid

FORMATS = ("mermaid", "dot", "svg", "png")
SUFFIXES = {".mmd": "mermaid", ".mermaid": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png"}
DRAWING_S_MAX = 60


@verb("check")
@topology_options
@engine_options
def check(named: TopologyOptions, engine: EngineOptions) -> None:
    """Report every problem of a topology, each at its place in the file. Exit code 2 if there is an error.

    With --on, what the engine cannot honour of the topology is a problem, too.
    """
    loaded = load(named, by_engine=bool(engine.on))
    more = problems_on(engine, loaded)
    loaded = loaded._replace(warnings=(*loaded.warnings, *more))
    if named.as_json:
        print_json("problems", problems=problems_json(loaded.warnings))
        return
    show_problems(more)
    graph = loaded.graph
    replicas = sum(role.max_replicas for role in graph.roles)
    size = f"{_counted(len(graph.roles), 'role')}, up to {_counted(replicas, 'replica')}"
    nodes_text = _counted(len(graph.cluster.nodes), "node") if graph.cluster.given else "nodes of any number"
    warnings = f", {_counted(len(loaded.warnings), 'warning')}" if loaded.warnings else ""
    click.echo(f"{graph.name}: ok ({size}, {nodes_text}{warnings})")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


@verb("plan")
@topology_options
def plan(named: TopologyOptions) -> None:
    """Show sizes, placement, start waves, restart policies, and what restarts with what."""
    from flowdist.report.static.plan import plan_of, plan_text  # the controller: not needed by the other verbs

    loaded = load(named)
    found = plan_of(loaded.graph, os.environ.get("PYTHON_EXEC", sys.executable), sys.executable)
    if named.as_json:
        problems = problems_json(loaded.warnings)
        print_json("plan", graph=json.loads(encode_graph(loaded.graph)), **found, problems=problems)
    else:
        click.echo(plan_text(loaded.graph, found), nl=False)


@verb("graph")
@topology_options
@click.option("--format", "wanted", type=click.Choice(FORMATS), help="Default: the suffix of FILE, else mermaid.")
@click.option("-o", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE (default: stdout).")
def graph(named: TopologyOptions, wanted: str | None, file: str | None) -> None:
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
    shown = load(named).graph
    if named.as_json:
        print_json("graph", **graph_of(shown))
        return
    text = mermaid(shown) if form == "mermaid" else dot(shown)
    content = text.encode() if form in ("mermaid", "dot") else _draw(text, form)
    if file is None:
        click.echo(content.decode(), nl=False)
        return
    write(Path(file), content)


def _draw(text: str, form: str) -> bytes:
    """Return the image that graphviz draws from a text in its dot language; `form` is svg or png."""
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


@verb("explain")
@topology_options
@click.option("--fail", "fails", multiple=True, metavar="TARGET[:KIND]", help="ps/0, ps, node1, zone=a, ps/0:exit=2")
def explain(named: TopologyOptions, fails: tuple[str, ...]) -> None:
    """Explain an error code; or what a failure restarts, in which order, which role pays, and why.

    \b
    flowdist explain FD112                     the meaning of the code, and what to do
    flowdist explain jobs.py --fail ps/0       one replica is killed; ps alone means all of them
    flowdist explain --fail node1 --fail ps/0:oom      each by itself, with topology.py of this folder

    Nothing runs. TARGET is a replica, a worker, a role, all, nodes (node1,node2), a label of nodes (zone=a) or the
    controller; KIND is kill (default), exit=CODE, signal=NAME, oom, hang, start_failed or unready, for nodes kill,
    lost, leave, drain or preempt.
    """
    target = named.target or ""
    if re.fullmatch(r"fd\w*", target, re.IGNORECASE) is not None and not Path(target).exists():
        from flowdist.dsl.problems.codes import section  # the documentation: only for a code

        if fails:
            help = f"write flowdist explain {target}, or name a topology"
            raise FlowdistError(f"--fail {fails[0]}: {target} is an error code, no topology", help=help)
        found = section(target)
        if named.as_json:
            print_json("code", **found._asdict())
        else:
            click.echo(f"{found.code}: {found.title}\n\n{found.text}")
        return
    if not fails:
        words = f"flowdist explain {target or DEFAULT_FILE} --fail ps/0"
        help = f"write {words}; or name an error code: flowdist explain FD112"
        raise FlowdistError("nothing to explain: neither an error code nor a --fail", help=help)
    compiled = load(named).graph
    # the controller: only where a failure is explained
    from flowdist.report.static.explain import Explainer, explanation_text
    from flowdist.report.static.failing import parse_failings

    failings = [failing for text in fails for failing in parse_failings(text, compiled)]
    explainer = Explainer(compiled)
    explanations = [explainer.explain(failing) for failing in failings]
    if named.as_json:
        print_json("explanation", failures=explanations)
    else:
        click.echo("\n".join(explanation_text(each) for each in explanations), nl=False)
