"""`flowdist validate`: published results beside what the simulator computes for them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flowdist.cli.shared.common import print_json, verb
from flowdist.cli.shared.simulated import BROKEN
from flowdist.validation.rows import load_claims, load_rows, row_files
from flowdist.validation.verdicts import judge, verdicts_markdown, verdicts_text


@verb("validate")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--only", help="Only rows whose name contains this text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", is_flag=True, hidden=True, help="The tables of evidence/truth.md.")
def command(files: tuple[Path, ...], only: str | None, as_json: bool, markdown: bool) -> None:
    """Compare published results with what the simulator computes for the same jobs.

    Without FILES, the rows of the package. A file quotes its source, and states the tolerance and the job: see
    evidence/truth.md. Exit code 0 if each row agrees, or misses as it says; else 3.
    """
    every = load_rows(files or row_files())
    rows = [row for row in every if (only or "") in row.name]
    if not rows:
        names = ", ".join(row.name for row in every)
        raise click.UsageError(f"no row has {only!r} in its name; there are {names}")
    claims = load_claims() if not files and only is None else []
    judged = list(map(judge, rows))
    if as_json:
        told = [{"source": claim.source, "says": claim.says, "why": claim.why} for claim in claims]
        print_json("validation", rows=[one.as_json for one in judged], cannot=told)
    else:
        click.echo((verdicts_markdown if markdown else verdicts_text)(judged, claims), nl=False)
    sys.exit(0 if all(one.is_good for one in judged) else BROKEN)
