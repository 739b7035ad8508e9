"""The judge of the oracle, its tables, and a few scripts under both launchers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.choosing import slow
from tests.oracle.cases import Edit, all_cases
from tests.oracle.differences import NAMED, name_of
from tests.oracle.judge import Difference, Key, differences

ROOT = Path(__file__).parents[2]
QUICK = ("environment/json_config", "environment/rank_ways[dict]", "randomness/seeded_then_import")


def _run(pid: int, *, drawn: float = 0.5, name: str = "a", printed: tuple[str, ...] = ("hello",)) -> dict[str, Any]:
    """Return what two ranks show: each a pid of its own, a number that is drawn, and a name that both share."""
    return {
        "exit code": 0,
        "files": {"job/saved.txt": "1"},
        "processes": {
            f"0-{rank}": {
                "stdout": list(printed),
                "stderr": [],
                "notes": {"first step": {"pid": pid + rank, "own": {"drawn": drawn}, "umask": 18, "name": name}},
            }
            for rank in (0, 1)
        },
    }


def _found(spoil: Callable[[dict[str, Any]], None] = lambda run: None, *, fails: bool = False) -> list[str]:
    """Judge a run that is as under torchrun but for what `spoil` has changed; return the entries that differ."""
    tried = _run(300, name="c")
    spoil(tried)
    judged = differences({"first": _run(100, name="a")}, {"first": _run(200, name="b")}, {"first": tried}, fails)
    return [f"{difference.key.process} {difference.key.entry}".strip() for difference in judged]


def _notes(run: dict[str, Any], process: str) -> dict[str, Any]:
    notes: dict[str, Any] = run["processes"][process]["notes"]["first step"]
    return notes


def test_equal_runs_have_no_differences_although_each_has_pids_and_names_of_its_own() -> None:
    assert _found() == []


def test_a_value_that_torchrun_always_has_must_be_equal() -> None:
    assert _found(lambda run: _notes(run, "0-1").update(umask=0)) == ["0-1 notes: first step: umask"]
    assert _found(lambda run: _notes(run, "0-0")["own"].update(drawn=0.25)) == ["0-0 notes: first step: own: drawn"]


def test_what_differs_between_ranks_must_differ() -> None:
    assert _found(lambda run: _notes(run, "0-1").update(pid=300)) == ["0-1 notes: first step: pid"]


def test_what_ranks_share_must_be_shared() -> None:
    assert _found(lambda run: _notes(run, "0-1").update(name="d")) == ["0-1 notes: first step: name"]


def test_what_is_missing_and_what_is_new_differ() -> None:
    assert _found(lambda run: run["processes"].pop("0-1"))
    assert _found(lambda run: _notes(run, "0-0").pop("umask")) == ["0-0 notes: first step: umask"]
    assert _found(lambda run: _notes(run, "0-0").update(extra=1)) == ["0-0 notes: first step: extra"]
    assert _found(lambda run: run["files"].clear()) == ["files: job/saved.txt"]
    assert _found(lambda run: run.update({"exit code": 1})) == ["exit code"]


def test_a_module_from_elsewhere_differs_and_one_that_is_loaded_at_another_point_is_told_by_the_lists() -> None:
    def judged(*found: dict[str, str]) -> list[str]:
        runs = []
        for origins in ({"a": "x/a.py"}, {"a": "x/a.py"}, *found):
            run = _run(100)
            run["processes"]["0-0"]["notes"] = {"one": {"origins": origins}, "two": {"origins": {}}}
            runs.append({"first": run})
        return [difference.key.entry for difference in differences(*runs)]

    assert judged({"a": "x/a.py"}) == []
    assert judged({"a": "y/a.py"}) == ["origins: a"]
    assert judged({"a": "x/a.py", "b": "x/b.py"}) == []


def test_output_counts_line_by_line() -> None:
    assert _found(lambda run: run["processes"]["0-0"].update(stdout=["hello", "hello"])) == ["0-0 stdout"]


def test_of_ranks_that_all_fail_one_has_to_tell_everything() -> None:
    def one(run: dict[str, Any]) -> None:
        run["processes"]["0-1"]["stdout"] = []

    def both(run: dict[str, Any]) -> None:
        run["processes"]["0-0"]["stdout"] = run["processes"]["0-1"]["stdout"] = []

    def other(run: dict[str, Any]) -> None:
        run["processes"]["0-1"]["stdout"] = ["else"]

    def within_a_line(run: dict[str, Any]) -> None:
        run["processes"]["0-1"]["stdout"] = ["hel"]

    def more(run: dict[str, Any]) -> None:
        run["processes"]["0-1"]["stdout"] = ["hello", "hello"]

    assert _found(one) == ["0-1 stdout"]
    assert _found(one, fails=True) == []
    assert _found(within_a_line, fails=True) == []
    assert _found(more, fails=True) == ["0-1 stdout"]
    assert _found(both, fails=True) == ["0-0 stdout", "0-1 stdout"]
    assert _found(other, fails=True) == ["0-1 stdout"]


def test_a_rank_whose_output_differs_by_chance_has_told_everything() -> None:
    runs = [_run(100 * number, name=str(number)) for number in (1, 2, 3)]
    for number, run in enumerate(runs):
        for process in run["processes"].values():
            process["stderr"] = [f"thread {number} aborts"]
    runs[2]["processes"]["0-1"].update(stdout=[], stderr=[])
    assert list(differences(*({"first": run} for run in runs), fails=True)) == []
    runs[2]["processes"]["0-0"].update(stderr=[])
    assert [difference.key.entry for difference in differences(*({"first": run} for run in runs), fails=True)]


def test_which_of_the_ranks_ends_early_is_chance_under_torchrun_as_well() -> None:
    early = _run(100), _run(200, name="b"), _run(300, name="c")
    for run, process in zip(early, ("0-0", "0-1", ""), strict=True):
        if process:
            run["processes"][process]["stdout"] = []
    runs = [{"first": run} for run in early]
    assert [difference.key.entry for difference in differences(*runs)] == ["stdout"]
    assert list(differences(*runs, fails=True)) == []


def test_a_name_fits_its_own_difference_alone() -> None:
    def named(entry: str, expected: object, found: object) -> bool:
        key = Key("first", "0-0", f"notes: first step: {entry}")
        return name_of(Difference(key, json.dumps(expected), json.dumps(found))) is not None

    assert named("ranked: MASTER_ADDR", "localhost", "127.0.0.1")
    assert not named("ranked: MASTER_ADDR", "localhost", "elsewhere")
    assert named("orig_argv", ["python", "-u", "train.py"], ["python", "train.py"])
    assert not named("orig_argv", ["python", "-u", "train.py"], ["python", "other.py"])
    assert named("modules", ["a", "b"], ["torch._dynamo", "a", "b"])
    assert not named("modules", ["a", "b"], ["torch._dynamo", "b", "a"])
    assert not named("modules", ["a"], ["a", "helper"])
    assert not named("umask", 18, 0)
    assert not named("own: name", "a", "b")


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.reason)
def test_a_named_difference_is_in_the_documents(named: Any) -> None:
    text = " ".join((ROOT / named.document).read_text().split())
    assert named.words in text


def test_there_are_scripts_enough_and_each_says_what_it_is_about() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases) >= 100
    assert all(len(case.about) > 10 for case in cases)


def test_an_edit_that_changes_nothing_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("X = 1\n")
    with pytest.raises(ValueError, match="is not there"):
        Edit(files={"a.py": ("Y", "Z2")}).apply(tmp_path)
    with pytest.raises(ValueError, match="the same length"):
        Edit(files={"a.py": ("1", "2")}).apply(tmp_path)
    Edit(files={"a.py": ("1", "22")}).apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "X = 22\n"


def _oracle(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.oracle", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.real
@pytest.mark.parametrize("name", QUICK)
def test_a_script_is_the_same_under_flowdist(name: str) -> None:
    ended = _oracle("--jobs", "1", "--only", name)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 scripts" in ended.stdout


def _one_of_each_kind() -> list[str]:
    found = {case.name.partition("/")[0]: case.name for case in reversed(all_cases())}
    return sorted(name for name in found.values() if name not in QUICK)


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", slow(_one_of_each_kind()))
def test_a_script_of_each_kind_is_the_same_under_flowdist(name: str) -> None:
    ended = _oracle("--jobs", "1", "--only", name)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# What a fork without care makes different, by the script that shows it.
FAULTS = {
    "randomness/half_seeded": "own: salt",  # one unseeded number for all ranks
    "randomness/names_at_import": "own: NAME",
    "randomness/seeded_then_import": "own: last",  # `random` seeds itself anew in a fork
    "files/kept_open": "own: own",  # one position for all ranks
    "files/checkpoint_appears[exists]": "own: found",  # the answer of the first attempt
    "files/temporary": "own: still",  # removed by the rank that ends first
    "files/output": "stdout",
    "imports/edited_between": "own: helper",
    "processes/forks": "own: forks",  # the script's hooks see a fork that is not its own
    "processes/sessions": "own: same",  # a process id that is another's
}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_oracle_finds_fault_with_a_launcher_that_forks_without_care() -> None:
    names = [word for name in FAULTS for word in ("--only", name)]
    ended = _oracle("--launcher", "naive", "--json", *names)
    assert ended.returncode == 1, ended.stderr
    for case in json.loads(ended.stdout):
        found = {difference["entry"].split(": ", 2)[-1] for difference in case["differences"]}
        found |= {difference["entry"] for difference in case["differences"]}
        assert FAULTS[case["case"]] in found, case["case"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_oracle_is_quiet_where_torchrun_is_compared_with_itself() -> None:
    ended = _oracle("--launcher", "torchrun", *(word for name in FAULTS for word in ("--only", name)))
    assert ended.returncode == 0, ended.stdout + ended.stderr
