"""`flowdist explain`: the meaning of an error code, or the consequences of a failure."""

from __future__ import annotations

import re
from pathlib import Path

import click

from flowdist.cli.shared.common import load, print_json, verb
from flowdist.cli.shared.options import TopologyOptions, topology_options
from flowdist.dsl.load import DEFAULT_FILE
from flowdist.dsl.problems.codes import section
from flowdist.errors import FlowdistError


@verb("explain")
@topology_options
@click.option("--fail", "fails", multiple=True, metavar="TARGET[:KIND]", help="ps/0, ps, node1, zone=a, ps/0:exit=2")
def command(named: TopologyOptions, fails: tuple[str, ...]) -> None:
    """Explain an error code; or what a failure restarts, in which order, which role pays, and why.

    \b
    flowdist explain FD112                     the meaning of the code, and what to do
    flowdist explain jobs.py --fail ps/0       one replica is killed; ps alone means all of them
    flowdist explain --fail node1 --fail ps/0:oom      each by itself, with topology.py of this folder

    Nothing runs. TARGET is a replica, a worker, a role, all, a node, a label of nodes (zone=a) or the controller;
    KIND is kill (default), exit=CODE, signal=NAME, oom, hang, start_failed or unready, for nodes kill, lost, leave,
    drain or preempt.
    """
    if named.target is not None and _looks_like_code(named.target):
        _explain_code(named, fails)
    elif fails:
        _explain_failures(named, fails)
    else:
        named_file = named.target or DEFAULT_FILE
        help = f"write flowdist explain {named_file} --fail ps/0; or name an error code: flowdist explain FD112"
        raise FlowdistError("nothing to explain: neither an error code nor a --fail", help=help)


def _looks_like_code(target: str) -> bool:
    """Return whether the target is meant as an error code, `FD112`, and is not a file."""
    return re.fullmatch(r"fd\w*", target, re.IGNORECASE) is not None and not Path(target).exists()


def _explain_code(named: TopologyOptions, fails: tuple[str, ...]) -> None:
    """Print what docs say about an error code; refuse --fail beside it."""
    if fails:
        help = f"write flowdist explain {named.target}, or name a topology"
        raise FlowdistError(f"--fail {fails[0]}: {named.target} is an error code, no topology", help=help)
    found = section(named.target or "")
    if named.as_json:
        print_json("code", **found._asdict())
    else:
        click.echo(f"{found.code}: {found.title}\n\n{found.text}")


def _explain_failures(named: TopologyOptions, fails: tuple[str, ...]) -> None:
    """Print the explanation of each failure, each by itself."""
    graph = load(named).graph
    from flowdist.report.static.explain import Explainer  # the controller: only where a failure is explained
    from flowdist.report.static.failing import parse_failings
    from flowdist.report.static.telling import explanation_text

    failings = [failing for text in fails for failing in parse_failings(text, graph)]
    explainer = Explainer(graph)
    explanations = [explainer.explain(failing) for failing in failings]
    if named.as_json:
        print_json("explanation", failures=explanations)
    else:
        click.echo("\n".join(explanation_text(each) for each in explanations), nl=False)
