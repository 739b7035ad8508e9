"""`flowdist timeline`: a run or a simulation, drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flowdist.cli.common import guarded
from flowdist.cli.records import find_record, read_journal
from flowdist.errors import FlowdistError

FORMATS = {"html": ".html", "perfetto": ".json"}


@click.command(name="timeline")
@click.argument("file")
@click.option("-o", "output", type=click.Path(dir_okay=False), metavar="FILE", help="Write there; - is stdout.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Default: by the suffix of FILE, else html.")
@guarded
def command(file: str, output: str | None, form: str | None) -> None:
    """Draw a run or a simulation: who ran where and when, and why it ended.

    \b
    flowdist timeline runs/latest                      writes timeline.html into that folder
    flowdist timeline trace.jsonl -o out.html          of flowdist simulate --trace trace.jsonl
    flowdist timeline trace.jsonl --format perfetto    trace.json, for ui.perfetto.dev or chrome://tracing

    FILE is journal.jsonl, the folder of a run, or a trace. The page needs no network: everything is in it. Exit code 3
    if this version decides otherwise than is recorded; the timeline ends there.
    """
    path = find_record(file)
    form = form or _format_of(output)
    header, lines, _ = read_journal(path)
    from flowdist.report.page import timeline_page
    from flowdist.report.perfetto import perfetto_json
    from flowdist.report.timeline import timeline_of

    timeline = timeline_of(header, lines)
    content = timeline_page(timeline).encode() if form == "html" else perfetto_json(timeline)
    if output == "-":
        click.echo(content, nl=False)
    else:
        target = Path(output) if output is not None else _beside(path, form)
        write(target, content)
        click.echo(f"{target}: {len(timeline.attempts)} attempts, {len(content) / 1e6:.1f} MB", err=True)
    if timeline.differs_at is not None:
        click.echo(f"event {timeline.differs_at} is decided otherwise by now; the timeline ends there", err=True)
        sys.exit(3)


def _format_of(output: str | None) -> str:
    """By the suffix of the file; FlowdistError for one that says nothing."""
    if output in (None, "-"):
        return "html"
    found = {suffix: form for form, suffix in FORMATS.items()} | {".htm": "html"}
    suffix = Path(output or "").suffix.lower()
    if suffix not in found:
        help = f"known: {', '.join(found)}; or add --format"
        raise FlowdistError(f"-o {output}: its suffix names no format", help=help)
    return found[suffix]


def _beside(path: Path, form: str) -> Path:
    """timeline.html in the folder of a run, trace.html beside trace.jsonl."""
    name = "timeline" if path.name == "journal.jsonl" else path.stem
    target = path.with_name(name + FORMATS[form])
    if target == path:
        raise FlowdistError(f"{path} would be overwritten", help="name another file after -o")
    return target


def write(path: Path, content: bytes) -> None:
    """FlowdistError where that cannot be done."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise FlowdistError(f"{path} cannot be written: {error.strerror}", help="name another file") from None
