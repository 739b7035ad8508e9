"""Published results: the files, the verdicts, and that each row of evidence/truth.md is what the simulator computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.simulate.validate import command
from flowdist.errors import FlowdistError
from flowdist.report.goodput import Estimate
from flowdist.validation.play import values_of
from flowdist.validation.rows import Row, load_claims, load_rows, row_files
from flowdist.validation.verdicts import judge, verdict_on, verdicts_markdown

TRUTH = Path(__file__).parents[2] / "evidence/truth.md"
QUICK = "bloom-lost-work"


def row_text(**changed: str) -> str:
    """Return the text of a quick row of the package, with other values for some keys."""
    lines = next(path for path in row_files() if path.stem == QUICK).read_text().splitlines()
    for key, value in changed.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
    return "\n".join(lines) + "\n"


def validate(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, args)
    return result.exit_code, result.output


@pytest.mark.slow
@pytest.mark.parametrize("row", load_rows(row_files()), ids=lambda row: row.name)
def test_a_row_is_as_its_file_and_the_page_say(row: Row) -> None:
    one = judge(row)
    assert one.is_good
    (shown,) = rows_of(verdicts_markdown([one], []))
    assert shown in rows_of(TRUTH.read_text()), "evidence/truth.md is not what flowdist validate --markdown prints"


def rows_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| `")]


def test_there_are_rows_enough_and_each_says_where_its_numbers_come_from() -> None:
    rows = load_rows(row_files())
    agreeing = [row for row in rows if not row.miss]
    assert len(agreeing) >= 10
    assert len({row.source for row in agreeing}) >= 6
    page = TRUTH.read_text()
    assert len(rows_of(page)) == len(rows)
    for row in rows:
        assert all((row.source, row.place, row.says, row.represents, row.why)), row.name
        assert f"| `{row.name}`: {row.title} |" in page
    assert all(claim.says in page for claim in load_claims())


def test_a_quick_row_agrees_with_what_was_published() -> None:
    code, text = validate("--only", QUICK)
    assert code == 0
    assert "agrees" in text
    assert "1 of 1 rows are as stated, 0 of them misses; from 1 sources" in text


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"published": "1.7"}, "differs"),
        ({"published": "1.59"}, "unsure"),
        ({"seeds": '200\nmiss = "it should not agree"'}, "agrees unexpectedly"),
        ({"published": "1.7", "seeds": '200\nmiss = "it should not agree"'}, "miss"),
        ({"published": "1.7", "tolerance": '0.0\nbound = "at least"'}, "differs"),
        ({"published": "1.3", "tolerance": '0.0\nbound = "at least"'}, "agrees"),
        ({"published": "1.3", "tolerance": '0.0\nbound = "at most"'}, "differs"),
    ],
)
def test_a_row_that_is_not_as_stated_ends_with_exit_code_3(
    tmp_path: Path, changed: dict[str, str], verdict: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(row_text(**changed))
    code, text = validate(str(path), "--json")
    (row,) = json.loads(text)["rows"]
    assert (row["name"], row["verdict"], row["unit"]) == ("mine", verdict, "h")
    assert code == (0 if verdict in ("agrees", "miss") else 3)


def test_another_simulated_value_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = load_rows([path for path in row_files() if path.stem == QUICK])
    values = values_of(row)
    assert values == values_of(row)  # the same at each run, on each machine

    def forgetful(spent: int, cycle: int) -> tuple[int, int]:  # a planted bug: the last checkpoint is forgotten
        cycles, rest = divmod(spent, cycle)
        return cycles - 1, rest + cycle

    monkeypatch.setattr("flowdist.sim.user_code.workload.divmod", forgetful, raising=False)
    assert judge(row).verdict == "differs"


def test_the_whole_interval_has_to_agree() -> None:
    (row,) = load_rows([path for path in row_files() if path.stem == QUICK])
    found = {half: verdict_on(row, Estimate(1.55, half)) for half in (0.0, 0.04, 0.06, None)}
    assert found == {0.0: "agrees", 0.04: "agrees", 0.06: "unsure", None: "unsure"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title = ", "Invalid value"),
        (row_text(seeds="1"), "seeds = 1 gives no interval"),
        (row_text(tolerance="-0.1"), "tolerance = -0.1 is negative"),
        (row_text(quantity='"speed"'), "Invalid enum value 'speed'"),
        (row_text(quantity='"best interval"'), "quantity = 'best interval' with 0 intervals"),
        (row_text(seeds="20\ncolour = 1"), "Object contains unknown field colour"),
        (row_text(seeds='"many"'), "Expected int, got str"),
    ],
)
def test_a_file_that_is_no_row_is_an_error_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    code, output = validate(str(path))
    assert code == 2
    assert str(path) in output
    assert says in output


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError, match="No such file"):
        load_rows([tmp_path / "none.toml"])


def test_a_name_that_no_row_has_is_an_error_with_those_that_there_are() -> None:
    code, text = validate("--only", "speed")
    assert code == 2
    assert "no row has 'speed' in its name; there are bloom-lost-work" in text
