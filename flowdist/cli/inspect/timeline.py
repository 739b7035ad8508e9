"""`flowdist timeline`: a drawing of a run or a simulation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from flowdist.cli.shared.common import format_of, verb, write
from flowdist.cli.shared.records import RecordFile, find_record, made_of, refuse_macro
from flowdist.cli.shared.runs import complete_run
from flowdist.errors import FlowdistError
from flowdist.report.record.page import timeline_page
from flowdist.report.record.perfetto import perfetto_json
from flowdist.report.record.timeline import timeline_of
from flowdist.runtime.run_folder.runs import known_mask

FORMATS = {"html": ".html", "perfetto": ".json"}
SUFFIXES = {suffix: form for form, suffix in FORMATS.items()} | {".htm": "html"}


@verb("timeline")
@click.argument("file", default="latest", shell_complete=complete_run)
@click.option("-o", "output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to this file; - is stdout.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="Default: the suffix of FILE, else html.")
def command(file: str, output: str | None, form: str | None) -> None:
    """Draw a run or a simulation: which replicas ran where and when, and why they ended.

    \b
    flowdist timeline runs/latest                      writes timeline.html into that folder
    flowdist timeline trace.jsonl -o out.html          a trace of flowdist simulate --trace trace.jsonl
    flowdist timeline trace.jsonl --format perfetto    trace.json, for ui.perfetto.dev or chrome://tracing

    FILE is a run, by its name in runs/ or its folder, or a trace (default: the newest run). The page needs no network.
    flowdist report tells of the incidents on a terminal, flowdist replay of every event.
    Exit code 3 if this version of flowdist decides differently from the record; the timeline ends there.
    """
    path = find_record(file)
    form = form or ("html" if output in (None, "-") else format_of(output or "", SUFFIXES))
    record = RecordFile(path)
    refuse_macro(record.header, str(path))
    timeline = made_of(record, lambda lines: timeline_of(record.header, lines, str(path)))
    mask = known_mask(record.header.graph, os.environ)
    target = Path(output) if output is not None else _beside(path, form)
    content = timeline_page(timeline, mask=mask).encode() if form == "html" else perfetto_json(timeline, mask)
    if output == "-":
        click.echo(content.decode(), nl=False)
    else:
        write(target, content)
        click.echo(f"{target}: {len(timeline.attempts)} attempts, {len(content) / 1e3:,.0f} kB", err=True)
    if timeline.differs_at is not None:
        click.echo(f"event {timeline.differs_at} is decided otherwise by now; the timeline ends there", err=True)
        sys.exit(3)
    record.finish()


def _beside(path: Path, form: str) -> Path:
    """Return the default file of a timeline: timeline.html in the folder of a run, trace.html beside trace.jsonl."""
    name = "timeline" if path.name == "journal.jsonl" else path.stem
    target = path.with_name(name + FORMATS[form])
    if target == path:
        raise FlowdistError(f"{path} would be overwritten", help="name another file with -o")
    return target
