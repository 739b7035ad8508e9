"""Campaigns: what is told once, what is tried again, and where they stop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.simulate.simulate import command as simulate_command
from flowdist.sim.checks.properties import Properties, properties_of
from flowdist.testing import explore, graph_of
from flowdist.testing.campaign import Failure, Verdict, campaign
from flowdist.testing.corpus import Corpus, Known, kinds_of, seeds_text
from flowdist.testing.verdicts import BEFORE

ROOT = Path(__file__).parents[2]
GANG = str(ROOT / "scenarios/topologies/gang.py")


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(simulate_command, arguments)


def seldom_again() -> Properties:
    def one_generation_is_enough(job: object) -> bool:
        return job.worlds["trainer"].generation < 2  # type: ignore[attr-defined]

    return properties_of([one_generation_is_enough])


def in_topology(folder: Path, model: str) -> str:
    (folder / "mine.py").write_text(model)
    (folder / "job.py").write_text(
        "from flowdist import Restart, Topology, Workload\n"
        "t = Topology('job', nodes=2)\n"
        "t.role('trainer', 'true', replicas=2, simulate='mine:Worker', restart=Restart('role', max_restarts=5),"
        " workload=Workload(steps=30, startup='2s', checkpoint_every='10s', checkpoint_time='1s'))\n"
    )
    return str(folder / "job.py")


CLOCK = """
import time
class Worker:
    def __init__(self, ctx): self.ctx = ctx
    def restore(self): return 0
    def step(self, step): self.ctx.log(now=time.perf_counter_ns())
"""
FORGETFUL = """
class Worker:
    def __init__(self, ctx): self.ctx, self.sum = ctx, 0
    def restore(self): return int(self.ctx.latest() or 0)
    def step(self, step): self.sum += step
    def publish(self, step):
        self.ctx.store.write(str(step), b"")
        self.ctx.commit(str(step), step)
    def state(self): return {"sum": self.sum}
"""
NEVER_WORKS = """
class Worker:
    def __init__(self, ctx): pass
    def restore(self): return 0
    def step(self): pass
"""


def failures(*texts: str, property: str = "survives") -> list[Failure]:
    return [Failure(seed, property, text, ("node0@1s",)) for seed, text in enumerate(texts, 1)]


# one bug is told once


def test_failures_that_differ_in_times_and_numbers_are_of_one_kind() -> None:
    found = failures("no at 1m2.5s on node3: 12", "other at 3s", "no at 57s on node0: -1.5e-3")
    assert [(kind.shown.seed, kind.seeds) for kind in kinds_of(found)] == [(1, (1, 3)), (2, (2,))]


def test_what_was_waited_for_and_resumed_from_makes_no_other_kind() -> None:
    found = failures("late; waiting for a", "late; waiting for b; c", "late; resumed: generation 1 from step 0")
    assert len(kinds_of(found)) == 1


def test_exceptions_of_one_place_are_of_one_kind_whatever_they_led_to() -> None:
    raised = "user code raised in a/0 after 3s: KeyError: 'x', at"
    found = failures(f"failed; {raised} model.py:3 in step()", f"late; {raised} model.py:3 in step()")
    found += failures(f"failed; {raised} model.py:9 in step()")
    assert [kind.seeds for kind in kinds_of(found)] == [(1, 2), (1,)]


def test_the_property_is_part_of_the_kind() -> None:
    assert len(kinds_of(failures("x") + failures("x", property="liveness"))) == 2


def test_the_one_with_the_fewest_faults_is_shown() -> None:
    few, many = Failure(9, "a", "x", ()), Failure(2, "a", "x", ("node0@1s", "node1@2s"))
    [kind] = kinds_of([many, few])
    assert kind == (few, (2, 9)) and seeds_text(*kind) == "seed 9, and 1 alike (2)"
    assert seeds_text(few, (9,)) == "seed 9"
    assert seeds_text(few, tuple(range(20))) == "seed 9, and 19 alike (0, 1, 2, 3, 4, 5, 6, 7, ...)"


@pytest.mark.slow
def test_a_bug_that_hits_every_seed_is_one_paragraph_on_the_terminal(tmp_path: Path) -> None:
    done = cli(in_topology(tmp_path, FORGETFUL), "--seeds", "1:30")
    assert done.exit_code == 3 and done.output.count("shortest plan") == 1, done.output
    assert " alike (" in done.output
    alike = json.loads(cli(in_topology(tmp_path, FORGETFUL), "--seeds", "1:30", "--json").stdout)["alike"]
    assert len(alike) == 1 and len(alike[0]) > 5
    with pytest.raises(AssertionError, match=r"seed \d+, and \d+ alike \(.*: same result") as caught:
        explore(tmp_path / "job.py", seeds=30)
    assert str(caught.value).count("shortest plan") == 1


# where nothing more can be found


def test_a_job_that_fails_by_itself_is_not_explored(tmp_path: Path) -> None:
    done = cli(in_topology(tmp_path, NEVER_WORKS), "--explore", "50")
    assert done.exit_code == 3 and "seed 0: survives" in done.output
    assert "without any fault" in done.output and "never hit" not in done.output
    assert "the last 0 lines" not in done.output and done.output.count("shortest plan") == 1
    again = done.output.partition("again: flowdist simulate ")[2].splitlines()[0]
    assert cli(*again.split()).exit_code == 1


def test_the_command_of_a_model_that_reads_a_clock_shows_that_it_does(tmp_path: Path) -> None:
    done = cli(in_topology(tmp_path, CLOCK), "--explore", "5")
    assert done.exit_code == 3 and "seed 1: determinism" in done.output
    again = done.output.partition("again: flowdist simulate ")[2].splitlines()[0]
    second = cli(*again.split())
    assert second.exit_code == 3 and "determinism" in second.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupted_campaign_reports_what_it_found(jobs: int) -> None:
    heard: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        heard.append(verdict)
        if len(heard) == 5:
            raise KeyboardInterrupt

    report = campaign(graph_of(GANG), range(1, 400), jobs=jobs, properties=seldom_again(), tell=tell)
    assert (report.seeds, report.stopped) == (5, "interrupted")
    assert [failure.seed for failure in report.failures] == [one.seed for one in heard if one.failure is not None] != []


def test_an_interrupted_command_shows_what_it_found_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "props.py").write_text(
        "from flowdist.testing import always\nasked = []\n\n@always\ndef once(job):\n"
        "    asked.append(job)\n    if len(asked) > 4000:\n        raise KeyboardInterrupt\n"
        "    return job.worlds['trainer'].generation < 2\n"
    )
    corpus = tmp_path / "corpus.jsonl"
    asked = (GANG, "--explore", "500", "--properties", str(tmp_path / "props.py"), "--corpus", str(corpus))
    done = cli(*asked, "--alike", "0")
    assert done.exit_code == 130 and "stopped: interrupted" in done.output
    assert "shortest plan" in done.output and Corpus(corpus).known()


@pytest.mark.slow
def test_a_campaign_stops_after_failures_that_are_alike(tmp_path: Path) -> None:
    ten = campaign(graph_of(GANG), range(1, 400), properties=seldom_again())
    assert len(ten.failures) == 10 and ten.stopped == "after 10 failures that are alike"
    three = campaign(graph_of(GANG), range(1, 400), properties=seldom_again(), alike_max=3, jobs=2)
    assert three.failures == ten.failures[:3] and three.seeds == three.failures[-1].seed
    asked = (GANG, "--explore", "60", "--properties", str(tmp_path / "props.py"), "--json")
    (tmp_path / "props.py").write_text(
        "from flowdist.testing import always\n\n@always\ndef once(job):\n"
        "    return job.worlds['trainer'].generation < 2\n"
    )
    assert json.loads(cli(*asked, "--alike", "2").stdout)["stopped"] == "after 2 failures that are alike"
    assert json.loads(cli(*asked, "--alike", "0").stdout)["seeds"] == 60


def test_a_failure_shows_the_trace_around_its_cause_and_says_which_fault_it_needs_when(tmp_path: Path) -> None:
    failure = campaign(graph_of(GANG), range(1, 400), properties=seldom_again(), fail_fast=True).failures[0]
    hit = next(number for number, line in enumerate(failure.trace) if " !! " in line)
    assert hit <= BEFORE
    parts = failure.needs.split(", then ")
    assert all(re.fullmatch(r"[\w-]+ (while it \w+|during a recovery)", part) for part in parts), failure.needs


# the corpus


def test_a_plan_that_failed_is_tried_again_when_its_seed_draws_another_one() -> None:
    graph = graph_of(GANG)
    failed = {failure.seed for failure in campaign(graph, range(1, 30), properties=seldom_again()).failures}
    seed = min(set(range(1, 30)) - failed)
    known = Known(seed, ("trainer/1@30s",), "always")  # what it drew of a topology that was another one then
    report = campaign(graph, [seed], properties=seldom_again(), known=[known])
    assert report.seeds == 1 and [failure.faults for failure in report.failures] == [known.faults]
    held = campaign(graph, [seed], known=[known])
    assert held.seeds == 1 and not held.failures, "nothing is demanded: the plan holds, and the seed is tried"


def test_a_plan_of_what_is_not_there_any_more_is_told_and_kept(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    Corpus(corpus).keep([Failure(3, "survives", "x", ("node77@3s",)), Failure(4, "survives", "x", ("no@plan",))])
    done = cli(GANG, "--seeds", "5:6", "--corpus", str(corpus))
    assert done.exit_code == 0 and "2 plans name what this topology does not have" in done.output
    assert len(Corpus(corpus).known()) == 2
    outdated = json.loads(cli(GANG, "--seeds", "5:6", "--corpus", str(corpus), "--json").stdout)["outdated"]
    assert [known["seed"] for known in outdated] == [3, 4]


def test_a_corpus_keeps_what_became_of_the_peers(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus.jsonl")
    corpus.keep([Failure(3, "survives", "x", ("node0@3s",), collective="hang")])
    assert corpus.known() == [Known(3, ("node0@3s",), "survives", "hang")]


@pytest.mark.parametrize("line", ["", "nothing", "{}", "[]", '{"seed": "x"}', '{"seed": 3, "faults": 5}'])
def test_a_line_of_a_corpus_that_cannot_be_read_tells_of_no_failure(tmp_path: Path, line: str) -> None:
    (tmp_path / "corpus.jsonl").write_text(f'{line}\n{{"seed": 7}}\n')
    assert Corpus(tmp_path / "corpus.jsonl").known() == [Known(7, (), "")]


def test_a_corpus_that_cannot_be_written_or_read_is_refused_before_the_first_try(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.txt").write_text("buy milk\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    asked = (GANG, "--explore", "5", "--recovers-within", "1ms", "--corpus")
    for name, why in ((".", "Is a directory"), ("notes.txt", "tells of a failure"), ("bytes", "it is no text")):
        done = cli(*asked, str(tmp_path / name))
        assert done.exit_code == 2 and f"error: corpus {tmp_path / name}: " in done.output and why in done.output
    assert (tmp_path / "notes.txt").read_text() == "buy milk\n"
    done = cli(GANG, "--explore", "5", "--corpus", str(tmp_path / "new.jsonl"))
    assert done.exit_code == 0 and not (tmp_path / "new.jsonl").exists(), "nothing has failed"


def test_plans_that_fail_again_are_reported_at_once_and_fail_fast_stops_at_one() -> None:
    known = [Known(n, ("trainer/1@30s",), "always") for n in range(40, 44)]
    told: list[int] = []
    asked: dict[str, Any] = {"properties": seldom_again(), "known": known, "tell": lambda one: told.append(one.seed)}
    report = campaign(graph_of(GANG), [40, 41, 42, 43, 44], **asked)
    assert told[:4] == [40, 41, 42, 43] and report.seeds == 5
    assert campaign(graph_of(GANG), [40, 41], **asked, fail_fast=True).stopped == "at the first failure"


def test_of_failures_that_are_alike_a_corpus_keeps_ten(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus.jsonl")
    alike = [Failure(n, "always", f"it does not hold at {n}.5s", (f"node0@{n}s",)) for n in range(1, 31)]
    for failure in alike:
        corpus.keep([failure])  # as they are found
    corpus.keep([*alike, Failure(40, "always", "another one does not", ("node0@40s",))])  # and at the end
    assert seeds_in(corpus) == [*range(1, 11), 40]
    again = Corpus(tmp_path / "corpus.jsonl")
    again.keep([*alike[:10], alike[20]])  # those that are known fail again, and one more does
    assert seeds_in(again) == [*range(1, 11), 40]


def seeds_in(corpus: Corpus) -> list[int]:
    return list(dict.fromkeys(known.seed for known in corpus.known()))


def test_explore_keeps_what_fails_and_tries_it_first(tmp_path: Path) -> None:
    corpus = tmp_path / "deep/corpus.jsonl"
    asked = {"properties": None, "always": list(seldom_again().always), "corpus": corpus}
    with pytest.raises(AssertionError, match="seeds fail"):
        explore(GANG, seeds=range(1, 8), **asked)  # type: ignore[arg-type]
    failed = seeds_in(Corpus(corpus))
    assert failed
    with pytest.raises(AssertionError, match=f"seed {failed[0]}"):
        explore(GANG, seeds=[900], **asked)  # type: ignore[arg-type]
