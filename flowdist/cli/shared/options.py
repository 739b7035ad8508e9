"""Gathering of a verb's options into one frozen value, and the options that several verbs have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.faults.grammar import Plan
    from flowdist.graph import RoleGraph
    from flowdist.sim.calibration.calibration import Calibration

F = TypeVar("F", bound=Callable[..., Any])
OF_STEPS = ("step_time", "scaling", "batch")  # words of a workload that together say how long a step takes
repeated = functools.partial(click.option, multiple=True)

runs_option = click.option("--runs", "base", default="runs", metavar="DIR", help="Folder of all runs (default: runs).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
param_option = repeated("-p", "params", metavar="NAME=VALUE", help="A parameter of the topology.")
set_option = repeated("--set", "sets", metavar="[ROLE.]FIELD=VALUE", help="Override a field: docs/dsl.md.")
workload_option = click.option(
    "--workload",
    "workload_file",
    type=click.Path(dir_okay=False),
    help="Times of the workers, as flowdist calibrate measured them: workload.toml.",
)


def gathered(name: str, kind: type[Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Decorate a verb with options, in the order of --help, whose values it gets as one NamedTuple of this kind."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            values = {field: given.pop(field) for field in kind._fields if field in given}
            return function(*args, **given, **{name: kind(**values)})

        decorated: Any = wrapper
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


class TopologyOptions(NamedTuple):
    """Topology on the command line (None: topology.py), its parameters, overrides and nodes, and the form of output."""

    target: str | None
    params: tuple[str, ...]
    sets: tuple[str, ...]
    nodes: str | None = None
    as_json: bool = False

    def words(self) -> list[str]:
        """Return -p, --set and --nodes (not the target) as words of a command line that repeats this one."""
        words = [word for param in self.params for word in ("-p", param)]
        words += [word for text in self.sets for word in ("--set", text)]
        return words + (["--nodes", self.nodes] if self.nodes is not None else [])


topology_options = gathered(
    "named",
    TopologyOptions,
    click.argument("target", required=False),
    param_option,
    set_option,
    click.option("--nodes", metavar="N", help="Replace the nodes of the topology: 4, or 2:4."),
    json_option,
)


class FaultOptions(NamedTuple):
    """Faults on the command line, as text: one field for each option, with one text for each time that it is given."""

    fails: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Return the plan of all faults and operator's orders on the command line; an empty plan if there are none."""
        from flowdist.faults.files import parse_plan  # not needed by --help

        return parse_plan(*self)

    def words(self) -> list[str]:
        """Return the options as words of a command line that repeats this one."""
        flags = ("--fail", "--scale", "--add", "--drain", "--rate", "--faults")
        return [word for flag, texts in zip(flags, self, strict=True) for text in texts for word in (flag, text)]


_FAULTS = {
    "fails": repeated("--fail", "fails", metavar="FAULT", help="Cause a failure: ps/0@20s, node1@30s/60s."),
    "scales": repeated("--scale", "scales", metavar="ROLE=N@WHEN", help="Scale a role: trainer=4@60s."),
    "adds": repeated("--add", "adds", metavar="NODE@WHEN", help="Add a node like the first: node5@90s."),
    "drains": repeated("--drain", "drains", metavar="NODE@WHEN", help="Drain a node: node1@2m."),
    "rates": repeated("--rate", "rates", metavar="RATE", help="Faults at random: trainer-kill=6/replica-hour."),
    "files": repeated("--faults", "files", metavar="FILE", help="Faults of a file, one a line, or TOML."),
}


def fault_options(*names: str) -> Callable[[F], F]:
    """Give a verb options of `FaultOptions` by their fields, such as `fails` (default: all), as one argument."""
    return gathered("faults", FaultOptions, *(_FAULTS[name] for name in names or _FAULTS))


def times_of(file: str, graph: RoleGraph) -> Calibration:
    """Return the times of a workload.toml for the roles of a graph."""
    from flowdist.sim.calibration.file import read_calibration  # the simulator: only with --workload

    found = read_calibration(Path(file))
    names = [role.name for role in graph.roles]
    wrong = [
        f"{file}: the job has no role {name!r}; {did_you_mean(name, names)}"
        for name in found.roles
        if name not in names
    ]
    if wrong:
        raise FlowdistError("\n".join(wrong), help="remove the tables of these roles, or name the topology of the runs")
    return found


def fields_set(sets: Iterable[str]) -> list[str]:
    """Return the fields of workloads that texts of --set name, as `role.field` of the graph: `trainer.step_ns`."""
    from flowdist.sim.calibration.file import KEYS  # as above

    found = []
    for text in sets:
        role, dot, word = text.partition("=")[0].partition(".workload.")
        if dot and word in OF_STEPS:
            found += [f"{role}.{field}" for field in ("step_ns", "step_times", "batch_workers")]
        elif dot:
            found.append(f"{role}.{KEYS[word].field if word in KEYS else word}")
    return found


def options_with_values(command: click.Command) -> dict[str, bool]:
    """Return all options of a command, as `--set` or `-p`, each with whether it takes a value."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    values = {name: not option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}
    return {**values, "--help": False, "-h": False}
