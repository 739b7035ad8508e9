"""`flowdist replay`: the journal of a run, fed to a fresh controller, event by event."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from flowdist.cli.common import guarded, print_json
from flowdist.control.controller import Controller
from flowdist.control.history import Header, Line, Record, decode_lines, digest
from flowdist.errors import FlowdistError
from flowdist.report.summary import summary_of, summary_text
from flowdist.report.trace import stamp, trace_lines


@click.command(name="replay")
@click.argument("journal", type=click.Path(exists=True))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@guarded
def command(journal: str, as_json: bool) -> None:
    """Feed the journal of a run (or a trace) to a fresh controller and show it event by event.

    JOURNAL is journal.jsonl or the folder of a run. Exit code 3 if the controller decides otherwise than it did then.
    """
    path = Path(journal)
    path = path / "journal.jsonl" if path.is_dir() else path
    header, lines, raw = read_journal(path)
    controller = Controller(header.graph, header.known_nodes)
    different: Record | None = None
    shown = 0
    for line in lines:
        if isinstance(line, Record):
            effects = tuple(controller.handle(line.event, line.t_ns))
            controller.state.check()
            shown += 1
            if effects != line.effects and different is None:
                different = line
        if not as_json:
            _show(line)
    summary = summary_of(controller.state, lines)
    if as_json:
        where = different.n if different is not None else None
        print_json("replay", events=shown, differs_at=where, digest=digest(raw), **summary)
    else:
        click.echo("\n" + summary_text(summary), nl=False)
        click.echo(f"\ndigest {digest(raw)}")
        click.echo(f"{shown} events replayed: {'the same effects at each' if different is None else 'NOT the same'}")
        if different is not None:
            click.echo(f"the first difference is at event {different.n}: {_event_text(different)}", err=True)
    sys.exit(3 if different is not None else 0)


def read_journal(path: Path) -> tuple[Header, list[Line], list[bytes]]:
    """Header and lines. A last line that is cut off, as a crash leaves it, is left out.

    Raises:
        FlowdistError: for what is no journal.
    """
    raw = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    try:
        lines = list(decode_lines(raw))
    except msgspec.MsgspecError as error:
        raise FlowdistError(f"{path} is no journal: {error}", help="name journal.jsonl of a run's folder") from None
    if not lines or not isinstance(lines[0], Header):
        raise FlowdistError(f"{path} has no header", help="name journal.jsonl of a run's folder")
    return lines[0], lines[1:], raw


def _show(line: Line) -> None:
    """The event in short, then what followed from it."""
    if isinstance(line, Record):
        click.echo(f"{stamp(line.t_ns)}  #{line.n} {_event_text(line)}")
    for text in trace_lines([line]):
        click.echo(f"{' ' * 14}-> {text[14:]}")


def _event_text(record: Record) -> str:
    """`ReplicaExited replica=trainer/1 attempt=1 kind=exit`: the name and what is not the default."""
    event = record.event
    parts = []
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name in ("spec", "inventory", "ports") or value in (None, "", 0, ()):
            continue
        parts.append(f"{name}={value}")
    return " ".join([type(event).__name__, *parts])
