"""Gathering of a verb's options into one frozen value, and the options that several verbs have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from flowdist.faults.grammar import Plan

F = TypeVar("F", bound=Callable[..., Any])
repeated = functools.partial(click.option, multiple=True)

runs_option = click.option("--runs", "base", default="runs", metavar="DIR", help="Folder of all runs (default: runs).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
param_option = repeated("-p", "params", metavar="NAME=VALUE", help="A parameter of the topology.")
set_option = repeated("--set", "sets", metavar="[ROLE.]FIELD=VALUE", help="Override a field: docs/dsl.md.")


def gathered(name: str, kind: type[Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Decorate a verb with options, whose values it gets together as one argument.

    Args:
        name: The argument of the verb.
        kind: A NamedTuple, whose fields have the names of the options' parameters. A field without an option keeps its
            default.
        options: Decorators of click, in the order of --help.
    """

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
    """Topology on the command line, with its parameters, overrides and nodes, and whether the output is JSON.

    `target` is None for the default file, topology.py.
    """

    target: str | None
    params: tuple[str, ...]
    sets: tuple[str, ...]
    nodes: str | None
    as_json: bool

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
        """Return the plan of all faults and operator's orders on the command line; an empty plan if there are none.

        Raises:
            FlowdistError: One of them, or a file of faults, cannot be read.
        """
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
    """Give a verb the named options of `FaultOptions` (default: all), as one argument `faults`.

    A name is that of a field, such as `fails` for --fail.
    """
    return gathered("faults", FaultOptions, *(_FAULTS[name] for name in names or _FAULTS))
