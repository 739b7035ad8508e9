"""Runs on the command line: their names, statuses, and what a shell completes of them (of mistakes: nothing)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.shell_completion import CompletionItem

from flowdist.cli.shared.options import gathered, json_option, runs_option
from flowdist.errors import FlowdistError
from flowdist.runtime.run_folder.folder import find_run, is_locked, run_dirs
from flowdist.runtime.run_folder.runs import PATIENCE_S as USUAL_S
from flowdist.runtime.run_folder.runs import describe, state_of

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.record.status import Status

SIZES_MAX = 16  # a role with more sizes than that is completed to `ROLE=` alone
PATIENCE_S = 1.0  # for the controller of a run; a user who types does not wait longer


def complete_run(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of runs, the newest first, with whether they run; where no name fits, files."""
    try:
        found = [path for path in run_dirs(_base(ctx)) if path.name.startswith(incomplete)]
    except (FlowdistError, OSError):
        found = []
    items = [CompletionItem(path.name, help="running" if is_locked(path) else "over") for path in found]
    if "latest".startswith(incomplete) and (_base(ctx) / "latest").is_dir():
        items.insert(0, CompletionItem("latest", help="the newest run"))
    return items or [CompletionItem(incomplete, type="file")]


def complete_size(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return `ROLE=N` for each role and size; the sizes alone for shells that divide words at `=`."""
    found = _find(ctx)
    if found is None:
        return []
    bounds = {role.name: (role.min_replicas, role.max_replicas) for role in found[1].roles}
    before = [word for word in ctx.params.get("sizes") or () if word != "="][-1:]
    if before and before[0] in bounds:
        least, most = bounds[before[0]]
        return _starting(map(str, range(least, min(most, least + SIZES_MAX) + 1)), incomplete)
    texts: list[str] = []
    for name, (least, most) in bounds.items():
        texts += [f"{name}={n}" for n in range(least, most + 1)] if most - least < SIZES_MAX else [f"{name}="]
    return _starting(texts, incomplete)


def complete_target(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the roles of the run; after `ROLE/` the replicas of that role, and after a dot their workers."""
    found = _find(ctx)
    texts: list[str] = []
    for role in found[1].roles if found is not None else ():
        if "/" not in incomplete:
            texts.append(role.name)
        elif incomplete.startswith(f"{role.name}/"):
            replicas = [f"{role.name}/{i}" for i in range(role.max_replicas)]
            texts += [f"{each}.{i}" for each in replicas for i in range(role.procs)] if "." in incomplete else replicas
    return _starting(texts, incomplete)


def complete_node(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the nodes of the run, those that have joined it included."""
    found = _find(ctx)
    return _starting(nodes_of(*found, PATIENCE_S), incomplete) if found is not None else []


def nodes_of(run_dir: Path, graph: RoleGraph, patience_s: float | None = None) -> list[str]:
    """Return the names of a run's nodes, those that have joined it included; of a run that is over, the topology's."""
    try:
        joined = [node.name for node in describe(run_dir, patience_s or USUAL_S).nodes]  # in the order of joining
        return sorted(joined, key=lambda name: (len(name), name))
    except FlowdistError:
        return [node.name for node in graph.cluster.nodes]


def _find(ctx: click.Context) -> tuple[Path, RoleGraph] | None:
    """Return the folder and the graph of the run that the command line names so far; None if there is none."""
    try:
        return find_run(_base(ctx), ctx.params.get("run") or "latest")
    except (FlowdistError, OSError):
        return None


def _base(ctx: click.Context) -> Path:
    return Path(ctx.params.get("base") or "runs")


def _starting(texts: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(text) for text in texts if text.startswith(incomplete)]


run_argument = click.argument("run", default="latest", shell_complete=complete_run)
run_option = click.option(
    "--run",
    default="latest",
    metavar="RUN",
    help="Its name, the beginning of it, or its folder.",
    shell_complete=complete_run,
)


class RunOptions(NamedTuple):
    """Run on the command line, the folder of all runs, and whether the output is JSON."""

    run: str
    base: str
    as_json: bool = False

    def find(self) -> tuple[Path, RoleGraph]:
        """Return the folder of the run, and the role graph of its job."""
        return find_run(Path(self.base), self.run)


run_options = gathered("named", RunOptions, run_argument, runs_option, json_option)


def statuses(run_dir: Path, every_s: float) -> Iterator[Status]:
    """Yield the status of a run's job, asked from its controller every `every_s` seconds, until the run is over."""
    while True:
        try:
            yield describe(run_dir)
        except FlowdistError:
            if state_of(run_dir).state == "running":
                raise
            return
        time.sleep(every_s)
