"""A sentence decides nothing: with dots in place of the text of each decision, everything else is the same.

Tools read `what`, `about` and `incident` of a decision (docs/reference/events.md). If something in the product read its
text, a scenario would end in another way here, or a report would count or leave out something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner

from flowdist.cli.simulate.simulate import command
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Decided, Effect, What
from flowdist.record.journal import Record
from flowdist.record.reader import read_whole_lines
from flowdist.report.record.trace import shown_lines, trace_lines
from tests.choosing import few

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))


def in_dots(job: JobState, what: str, about: object, text: str, *rest: object, **more: object) -> None:
    told(job, what, about, "." * len(text), *rest, **more)


told = JobState.decided


def wordless(effect: Effect) -> Effect:
    return msgspec.structs.replace(effect, text="") if isinstance(effect, Decided) else effect


def played(scenario: Path, trace: Path) -> tuple[list[object], dict[str, Any], list[int]]:
    """Return the events and effects of a scenario without texts, its figures, and how many lines reports of it have."""
    found = CliRunner().invoke(command, [str(scenario), "--trace", str(trace), "--json"])
    figures = msgspec.json.decode(found.stdout)
    for name in ("unmet", "digest"):  # of the trace, which has the texts
        figures.pop(name, None)
    lines = read_whole_lines(trace.read_bytes())[0][1:]
    events = [
        (line.t_ns, line.event, [wordless(effect) for effect in line.effects]) if isinstance(line, Record) else line
        for line in lines
    ]
    sizes = [len(list(trace_lines(lines))), len(shown_lines(lines, 30))]
    return events, figures, sizes


@pytest.mark.parametrize("scenario", few(SCENARIOS, 20), ids=lambda path: path.stem)
def test_dots_in_place_of_sentences_change_nothing_else(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, figures, sizes = played(scenario, tmp_path / "trace.jsonl")
    monkeypatch.setattr(JobState, "decided", in_dots)
    assert played(scenario, tmp_path / "trace.jsonl") == (events, figures, sizes)


def test_the_reference_lists_every_decision() -> None:
    page = (ROOT / "docs/reference/events.md").read_text().partition("|---|---|---|")[2]
    cells = [row.split("|")[1] for row in page.splitlines() if row]
    assert {name.strip("`, ") for cell in cells for name in cell.split()} == set(get_args(What))
