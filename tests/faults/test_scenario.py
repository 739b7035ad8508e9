"""Scenario files: what is read, and how it is told what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowdist.errors import FlowdistError
from flowdist.faults.scenario import EXAMPLES, Expect, Scenario, check_expectations, load_scenario
from flowdist.graph import JointWorld
from tests.control.harness import graph, role

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
        (HEAD + "expect = 3", "expect = 3 cannot be read", "write [expect]"),
        (HEAD + 'seed = "x"', "seed = 'x' cannot be read", "write seed = 3"),
        (HEAD + "faults = [3]", "faults = [3] cannot be read", 'write faults = ["node2@3m/2m"]'),
        (
            HEAD + "[expect]\ncharged = { ps = 'x' }",
            "expect.charged = {'ps': 'x'} cannot be read",
            "write charged = { trainer = 0 }",
        ),
        ('title = "x"', "there is no topology", 'write topology = "topology.py"'),
        ('topology = "x.py"', "there is no title", 'write title = "a node is lost"'),
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


def test_every_key_has_an_example_that_can_be_read(tmp_path: Path) -> None:
    keys = [key for key in Scenario.__struct_fields__ if key != "expect"]
    assert list(EXAMPLES) == [*keys, *(f"expect.{key}" for key in Expect.__struct_fields__)]
    lines = [f"{key} = {example}" for key, example in EXAMPLES.items()]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert load_scenario(tmp_path / "all.toml").expect.world_sizes == {"trainer": [4, 3, 4]}


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError, match=r"nope\.toml: No such file"):
        load_scenario(tmp_path / "nope.toml")
    with pytest.raises(FlowdistError, match="Is a directory"):
        load_scenario(tmp_path)


JOB = msgspec.structs.replace(
    graph(role("trainer", max_replicas=2), role("side", gang=False, max_replicas=2)),
    worlds=(JointWorld("core", ("trainer",)),),
)


def test_expectations_of_what_the_job_has_pass() -> None:
    expect = Expect(restarted={"trainer": 1}, world_sizes={"core": [1], "side/1": [1], "trainer": [2]}, goodput_min=0.9)
    check_expectations(Path("s.toml"), expect, JOB)
    check_expectations(Path("s.toml"), Expect(lost_work_max="1m", recovered_within="30s"), JOB)


@pytest.mark.parametrize(
    ("expect", "message", "help"),
    [
        (Expect(restarted={"trianer": 1}), "expect.restarted: there is no 'trianer'", "did you mean 'trainer'?"),
        (Expect(generations={"core": 1}), "expect.generations: there is no 'core'", "known: trainer, side"),
        (Expect(charged={"x": 1}), "expect.charged: there is no 'x'", "known: trainer, side"),
        (Expect(world_sizes={"side/2": [1]}), "expect.world_sizes: there is no 'side/2'", "did you mean 'side/"),
        (Expect(members={"cor": ["0"]}), "expect.members: there is no 'cor'", "did you mean 'core'?"),
        (Expect(lost_work_max="much"), "expect.lost_work_max = 'much' is no duration", "write 30s"),
        (Expect(recovered_within="x"), "expect.recovered_within = 'x' is no duration", "write 30s"),
        (Expect(goodput_min=90), "expect.goodput_min = 90: a share of the time is from 0 to 1", "write 0.9"),
    ],
)
def test_an_expectation_that_cannot_be_is_a_mistake_of_the_file(expect: Expect, message: str, help: str) -> None:
    with pytest.raises(FlowdistError) as caught:
        check_expectations(Path("s.toml"), expect, JOB)
    assert caught.value.message == f"s.toml: {message}" and help in caught.value.help
