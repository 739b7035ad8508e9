"""What the verbs share: how a topology is named on the command line, and how a user's mistake is shown."""

from __future__ import annotations

import errno
import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.dsl.load import Loaded
    from flowdist.dsl.problems.problem import Problem

F = TypeVar("F", bound=Callable[..., Any])


class Named(NamedTuple):
    """The topology that the command line names, and how to show what is wrong with it."""

    target: str | None
    params: tuple[str, ...]
    sets: tuple[str, ...]
    nodes: str | None
    as_json: bool


def topology_options(function: F) -> F:
    """TARGET, -p, --set, --nodes and --json, given to the verb as one `named`."""

    @functools.wraps(function)
    def wrapper(
        target: str | None,
        params: tuple[str, ...],
        sets: tuple[str, ...],
        nodes: str | None,
        as_json: bool,
        **others: Any,
    ) -> Any:
        return function(named=Named(target, params, sets, nodes, as_json), **others)

    decorated: Any = wrapper
    for decorate in reversed(
        (
            click.argument("target", required=False),
            click.option("-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the topology."),
            click.option(
                "--set", "sets", multiple=True, metavar="[ROLE.]FIELD=VALUE", help="Override a field; see docs/dsl.md."
            ),
            click.option("--nodes", metavar="N", help="Instead of the topology's own nodes: 4, or 2:4."),
            click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
        )
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # nothing that flowdist has done wrong


def guarded(function: F) -> F:
    """Show a FlowdistError in words and end with its exit code; 130 when interrupted."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FlowdistError as error:
            fail(error, as_json=kwargs["named"].as_json if "named" in kwargs else bool(kwargs.get("as_json")))
        except OSError as error:
            if error.errno not in _OF_THE_DISK:
                raise
            wrong = FlowdistError(f"{error.filename or 'a file'} cannot be written: {error.strerror}")
            fail(wrong, as_json=kwargs["named"].as_json if "named" in kwargs else bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            sys.exit(130)

    return wrapper  # type: ignore[return-value]


def fail(error: FlowdistError, *, as_json: bool = False) -> NoReturn:
    """What is wrong on stderr, or under --json as an object on stdout; never a traceback."""
    from flowdist.dsl.problems.problem import TopologyProblems  # the DSL: verbs about a run do without

    if as_json:
        if isinstance(error, TopologyProblems):
            problems = [problem.as_dict() for problem in error.problems]
        else:
            problems = [{"code": "FD000", "message": error.message, "help": error.help}]
        print_json("problems", problems=problems)
    elif isinstance(error, TopologyProblems):
        show_problems(error.problems)
        click.echo(f"{error.message}.", err=True)
    else:
        click.echo(f"error: {error.message}", err=True)
        if error.help:
            click.echo(f"help: {error.help}", err=True)
    sys.exit(error.exit_code)


def show_problems(problems: Iterable[Problem]) -> None:
    for problem in problems:
        click.echo(problem.format() + "\n", err=True)


def print_json(kind: str, **content: Any) -> None:
    """The one object that a verb prints on stdout under --json."""
    click.echo(json.dumps({"format": 1, "kind": kind, **content}, indent=2))


def pairs(options: Iterable[str], flag: str) -> dict[str, str]:
    """`-p a=1 -p b=2` as a dict; FlowdistError for what has no `=`."""
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise FlowdistError(f"{flag} {option}: it has no value", help=f"write {flag} {option}=VALUE")
        values[name] = value
    return values


def write(path: Path, content: bytes) -> None:
    """FlowdistError where that cannot be done."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise FlowdistError(f"{path} cannot be written: {error.strerror}", help="name another file") from None


def load(named: Named, *, silent: Sequence[str] = ()) -> Loaded:
    """The topology that the command line names; its warnings are shown on stderr, but not under --json, nor those whose
    codes are in `silent`."""
    from flowdist.dsl.load import load_topology  # as in fail

    loaded = load_topology(named.target, pairs(named.params, "-p"), named.sets, named.nodes)
    if not named.as_json:
        show_problems(problem for problem in loaded.warnings if problem.code not in silent)
    return loaded
