"""Scenario files: what is read, and how it is told what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.errors import FlowdistError
from flowdist.scenario import Expect, load_scenario

HEAD = 'title = "a story"\ntopology = "t.py"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "story.toml"
    path.write_text(text)
    return path


def test_a_scenario_is_read_with_its_defaults(tmp_path: Path) -> None:
    text = HEAD + 'faults = ["node0@3s"]\n[params]\nn = 2\n[expect]\noutcome = "failed"\nrestarted = {a = 1}\n'
    scenario = load_scenario(written(tmp_path, text))
    assert (scenario.title, scenario.topology, scenario.faults) == ("a story", "t.py", ["node0@3s"])
    assert (scenario.nodes, scenario.seed, scenario.until, scenario.scale) == (None, 0, None, [])
    assert scenario.params == {"n": 2}
    assert scenario.expect == Expect(outcome="failed", restarted={"a": 1})


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        (HEAD + 'fault = ["x"]', "key 'fault' is unknown", "did you mean 'faults'?"),
        (HEAD + "zzz = 1", "key 'zzz' is unknown", "known: title, topology"),
        (HEAD + "[expect]\nrestart = {}", "key 'expect.restart' is unknown", "did you mean 'restarted'?"),
        (HEAD + '[expect]\noutcome = "success"', "expect.outcome = 'success' is unknown", 'write "succeeded"'),
        (HEAD + "expect = 3", "Expected `object`, got `int` - at `$.expect`", "see docs/simulate.md"),
        (HEAD + 'seed = "x"', "Expected `int`, got `str` - at `$.seed`", "see docs/simulate.md"),
        ('title = "x"', "missing required field `topology`", "see docs/simulate.md"),
        ("title = ", "Invalid value (at end of document)", "scenario files are TOML"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_the_key(tmp_path: Path, text: str, message: str, help: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FlowdistError) as caught:
        load_scenario(path)
    assert caught.value.message.startswith(f"{path}: ") and message in caught.value.message
    assert help in caught.value.help


def test_a_scenario_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "story.toml"
    path.write_bytes('title = "später"'.encode("latin-1"))
    with pytest.raises(FlowdistError, match="can't decode byte 0xe4") as caught:
        load_scenario(path)
    assert caught.value.help == "scenario files are UTF-8"


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError, match=r"nope\.toml: No such file"):
        load_scenario(tmp_path / "nope.toml")
    with pytest.raises(FlowdistError, match="Is a directory"):
        load_scenario(tmp_path)
