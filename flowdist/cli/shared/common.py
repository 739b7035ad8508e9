"""Topologies of the command line, styled output and JSON, files to write, and errors as the user sees them."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flowdist.cli.shared.options import TopologyOptions
from flowdist.errors import FlowdistError
from flowdist.text.printable import printable
from flowdist.text.streams import raw_stream

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from flowdist.dsl.load import Loaded
    from flowdist.dsl.problems.problem import Problem
    from flowdist.faults.grammar import Plan
    from flowdist.graph import RoleGraph
    from flowdist.record.journal import Line

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # the user can put these right, and those of a limit
_LIMITS = {
    errno.EAGAIN: "a limit on the number of processes is reached: see `ulimit -u`",
    errno.EFBIG: "the limit on the size of a file is reached: see `ulimit -f`",
    errno.EMFILE: "the limit on open files is reached: see `ulimit -n`",
    errno.ENFILE: "the limit on open files of this machine is reached",
    errno.ENOMEM: "this machine has no memory left",
}


class Guarded(click.Command):
    """Command that ends with a message, not a traceback, for an error of the user or this machine; Ctrl-C: with 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function of the verb."""
        as_json = bool(ctx.params.get("as_json"))
        try:
            return super().invoke(ctx)
        except FlowdistError as error:
            fail(error, as_json=as_json)
        except OSError as error:
            if (wrong := _of_the_machine(error)) is None:
                raise
            fail(wrong, as_json=as_json)
        except KeyboardInterrupt:
            sys.exit(130)


def verb(name: str, cls: type[Guarded] = Guarded, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorate a function as the verb `name`, with these settings of click."""
    return click.command(name, cls, **settings)


def _of_the_machine(error: OSError) -> FlowdistError | None:
    """Return the error for the user if disk, permissions or limits of this machine are its cause, else None."""
    file = error.filename or "a file"
    if error.errno in _DISK_ERRORS:
        return FlowdistError(f"{file} cannot be written: {error.strerror}")
    if error.errno == errno.EACCES:
        return FlowdistError(f"{file}: {error.strerror}")
    if error.errno in _LIMITS:
        return FlowdistError(f"this machine refuses: {error.strerror}", help=_LIMITS[error.errno])
    return None


def fail(error: FlowdistError, *, as_json: bool = False) -> NoReturn:
    """Print the error and exit with its exit code: on stderr, or with `as_json` as one object on stdout if possible."""
    from flowdist.dsl.problems.problem import TopologyProblems  # verbs about a run need no DSL

    if as_json:
        if isinstance(error, TopologyProblems):
            problems = problems_json(error.problems)
        else:
            problems = [{"code": "FD000", "message": error.message, "help": error.help}]
        try:
            print_json("problems", problems=problems)
        except OSError:
            click.echo(f"error: {error.message}", err=True)
    elif isinstance(error, TopologyProblems):
        show_problems(error.problems)
        click.echo(f"{error.message}.", err=True)
    else:
        click.echo(f"error: {error.message}", err=True)
        if error.help:
            click.echo(f"help: {error.help}", err=True)
    sys.exit(error.exit_code)


def show_problems(problems: Iterable[Problem]) -> None:
    """Print problems of a topology, errors or warnings, on stderr."""
    for problem in problems:
        click.echo(problem.format() + "\n", err=True)


def problems_json(problems: Iterable[Problem]) -> list[dict[str, object]]:
    """Return problems of a topology as --json prints them."""
    return [problem.as_dict() for problem in problems]


def paint(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a text on stdout or stderr, in its printable form and, on a terminal, with the style of `click.secho`."""
    click.secho(printable(text), file=raw_stream(sys.stderr if err else sys.stdout), **style)


def rich_console(*, err: bool = False, **settings: Any) -> Console:
    """Return a console of rich on stdout or stderr. The caller makes the text that it draws printable."""
    from rich.console import Console  # only for what is drawn

    return Console(file=raw_stream(sys.stderr if err else sys.stdout), highlight=False, markup=False, **settings)


def progress_bar(name: str, *fields: str, quiet: bool) -> Progress:
    """Return a progress bar with further `fields` and the remaining time, on stderr if that is a terminal."""
    from rich import progress  # only for what takes long

    console = rich_console(err=True)
    columns = (
        progress.TextColumn(name, markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        *(progress.TextColumn(field, markup=False) for field in fields),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def print_json(kind: str, /, **content: Any) -> None:
    """Print the one object of a verb under --json on stdout: `kind` names the verb's result, `content` are its keys.

    Keys of `content` do not replace `format` and `kind`: a file that the content was read from may have any key.
    """
    head = {"format": 1, "kind": kind}
    click.echo(json.dumps({**head, **content, **head}, indent=2))


def ns_of(option: str, text: str | None) -> int | None:
    """Return the duration that an option was given, in ns; None if it was not given."""
    from flowdist.graph import duration_help, parse_duration  # msgspec: not needed by --help

    try:
        return parse_duration(text) if text is not None else None
    except ValueError:
        raise FlowdistError(f"{option} {text} is not a duration", help=duration_help(text)) from None


def until_ns(text: str | None, example: str = "") -> int | None:
    """Return the value of --until in ns; None if not given. `example` is another value, where it may not be 0."""
    ns = ns_of("--until", text)
    if ns == 0 and example:
        raise FlowdistError(f"--until {text}: nothing happens before that time", help=f"write {example}")
    return ns


def format_of(file: str, suffixes: Mapping[str, str]) -> str:
    """Return the format of the file given with -o, by its suffix."""
    form = suffixes.get(Path(file).suffix.lower())
    if form is None:
        help = f"known: {', '.join(suffixes)}; or add --format"
        raise FlowdistError(f"-o {file}: its suffix names no format", help=help)
    return form


def write(path: Path, content: bytes) -> None:
    """Write a file that the user has named; an existing one is replaced."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise FlowdistError(f"{path} cannot be written: {error.strerror}", help="name another file") from None


def write_trace(file: str | Path | None, lines: Iterable[Line]) -> None:
    """Write the lines of a simulation's trace to the file of --trace; do nothing if `file` is None."""
    from flowdist.record.journal import encode_line  # msgspec: not needed by --help

    if file is not None:
        write(Path(file), b"".join(encode_line(line) for line in lines))


def load(named: TopologyOptions, *, silent: Sequence[str] = (), by_engine: bool = False) -> Loaded:
    """Compile the topology that the command line names, and print its warnings but for the `silent` ones on stderr."""
    from flowdist.dsl.load import load_topology  # as in `fail`

    params = {}  # of a name given twice, the last value counts
    for param in named.params:
        name, equals, params[name] = param.partition("=")
        if not equals:
            raise FlowdistError(f"-p {param} has no value", help=f"write -p {param}=VALUE")
    loaded = load_topology(named.target, params, named.sets, named.nodes, by_engine=by_engine)
    if not named.as_json:
        show_problems(problem for problem in loaded.warnings if problem.code not in silent)
    return loaded


def problems_of_job(loaded: Loaded, graph: RoleGraph, plan: Plan) -> list[Problem]:
    """Return the problems of timeouts that faults and options of the command line add to those of the topology."""
    if graph is loaded.graph and not any(plan):
        return []
    from flowdist.dsl.check.timeouts import find, problem_of  # only for what the command line changes
    from flowdist.report.static.plan_faults import problems_of_plan

    known = {(found.code, found.role) for found in find(loaded.graph)}
    new = [found for found in find(graph) if (found.code, found.role) not in known]
    return [*(problem_of(found, loaded.arguments) for found in new), *problems_of_plan(plan, graph, loaded.arguments)]
