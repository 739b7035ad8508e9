"""Tests of the explorer: small jobs hold, counts are reproducible, and every missing safeguard is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from flowdist.control.connection.sessions import Sessions
from flowdist.control.protocol import events as ev
from flowdist.graph import SECOND
from tests.choosing import few, slow
from tests.control.harness import Talk, graph, joined, r, restart, role
from tests.proofs.explorer import search as explorer
from tests.proofs.explorer.common import Allowed
from tests.proofs.explorer.copies import Keys, copy_of
from tests.proofs.explorer.jobs import JOBS, Part
from tests.proofs.explorer.planted_bugs import PLANTED_BUGS, planted

SMALL = [
    Part(JOBS["loose"], 1, True, 20_000),
    Part(JOBS["address"], 1, True, 20_000),
    Part(JOBS["gate"], 0, False, 10_000),
]
CALM = Allowed(crashes=False, operates=False)
PART_THAT_FINDS = {
    "late-news": Part(JOBS["gang"], 2, True, 40_000),
    "not-gone": Part(JOBS["domain"], 1, True, 10_000),
    "over-at-once": Part(JOBS["gate"], 1, True, 10_000),
    "start-again": Part(JOBS["gang"], 1, False, 30_000),
    "say-nothing": Part(JOBS["loose"], 1, False, 50_000),
    "lost-stops": Part(JOBS["address"], 1, True, 10_000),
    "late-orders": Part(JOBS["loose"], 1, False, 50_000),
    "no-patience": Part(JOBS["loose"], 1, True, 20_000),
    "no-fence": Part(JOBS["loose"], 1, True, 10_000),
    "too-soon": Part(JOBS["loose"], 1, True, 10_000),
    "old-weights": Part(JOBS["versions"], 1, True, 10_000),
    "unpublished": Part(JOBS["versions"], 0, False, 10_000),
    "torn-snapshot": Part(JOBS["snapshots"], 1, True, 10_000),
    "late-attempt": Part(JOBS["snapshots"], 1, True, 30_000),
    "late-generation": Part(JOBS["snapshots"], 1, True, 120_000),
    "broken-copy": Part(JOBS["snapshots"], 1, True, 30_000),
    "reads-what-is-lost": Part(JOBS["snapshots"], 1, True, 30_000),
    "old-vault": Part(JOBS["snapshots"], 1, True, 30_000),
}


@pytest.mark.parametrize("part", few(SMALL[::-1], 1), ids=lambda part: part.job.name)
def test_a_small_job_keeps_every_property_and_can_end(part: Part):
    explored = explorer.explore(part)
    assert explored.violation is None
    assert explored.is_whole and explored.states > 500 and explored.ends > 0


@pytest.mark.slow
def test_a_job_with_suspended_workers_keeps_every_property():
    explored = explorer.explore(Part(JOBS["staying"], 1, True, 20_000), CALM)
    assert explored.violation is None and explored.states > 10_000


@pytest.mark.slow
def test_the_number_of_states_does_not_depend_on_the_hash_seed():
    runs = [_run("--roles", "address", "--faults", "1", "--running", "--json", seed=seed) for seed in "12"]
    found = [[(job["states"], job["transitions"], job["depth"]) for job in json.loads(run)["jobs"]] for run in runs]
    assert found[0] == found[1]


def _run(*args: str, seed: str) -> str:
    command = [sys.executable, "-m", "tests.proofs.explorer", *args]
    env = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def test_each_planted_bug_has_a_part_that_finds_it():
    assert set(PART_THAT_FINDS) == set(PLANTED_BUGS)


QUICK = ("over-at-once", "no-fence", "too-soon", "torn-snapshot")  # a second or less each


@pytest.mark.parametrize("name", [*QUICK, *slow(name for name in PLANTED_BUGS if name not in QUICK)])
def test_the_explorer_finds_a_safeguard_missing(name: str):
    with planted(name):
        explored = explorer.explore(PART_THAT_FINDS[name], Allowed() if name == "no-patience" else CALM)
    assert explored.violation is not None
    assert explored.violation.path
    assert explorer.explore(SMALL[0], CALM).violation is None  # the safeguard works again


def test_the_command_prints_the_shortest_path_in_words_and_fails(capsys: pytest.CaptureFixture[str]):
    assert explorer.main(["--roles", "loose", "--faults", "1", "--running", "--plant", "no-fence"]) == 1
    printed = capsys.readouterr().out
    assert printed.split("\n\n")[1].splitlines()[:4] == [
        "loose, from running: the job has succeeded, but worker/1 runs",
        "  worker/0#1 on node0 finishes",
        "  node0 -> controller: ReplicaExited worker/0#1 success",
        "! the controller dies, and all connections close",
    ]


def test_the_command_names_the_known_jobs(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        explorer.main(["--roles", "gnag"])
    assert (
        "no such job: gnag; known: gang, asking, staying, snapshots, gate, loose, domain, helper, address, versions, "
        "ignore" in capsys.readouterr().err
    )


def test_a_copy_behaves_as_its_original_and_shares_nothing_with_it():
    talk = joined(role("trainer", min_replicas=1, max_replicas=2, restart=restart()), nodes=2, cpu=1)
    keys, sessions = Keys(talk.graph), Sessions(talk.graph.options)
    copy = copy_of(talk.controller)
    before = keys.of_controller(copy, sessions, talk.now)
    failed = ev.ReplicaExited(r("trainer/0"), 1, "exit", 1)
    effects = talk.controller.handle(failed, talk.now)
    assert keys.of_controller(copy, sessions, talk.now) == before
    assert copy.handle(failed, talk.now) == effects
    assert (
        keys.of_controller(copy, sessions, talk.now)
        == keys.of_controller(talk.controller, sessions, talk.now)
        != before
    )


def test_a_copy_keeps_the_identities_within_the_original():
    talk = Talk(graph(role("trainer", min_replicas=1, max_replicas=2, restart=restart()), nodes=2, cpu=1))
    copy = copy_of(talk.controller)
    before, after = talk.controller.state, copy.state
    assert before.roles["trainer"].candidates is before.candidate_indexes[0]
    assert after.roles["trainer"].candidates is after.candidate_indexes[0] is not before.candidate_indexes[0]
    after.worlds["trainer"].stalls["output"] += 1
    assert before.worlds["trainer"].stalls != after.worlds["trainer"].stalls


def test_ages_beyond_what_any_rule_reads_give_equal_keys():
    talk = joined(role("trainer", max_replicas=1, restart=restart()), cpu=1)
    keys, sessions = Keys(talk.graph), Sessions(talk.graph.options)
    seen = [keys.of_controller(talk.controller, sessions, talk.now + after * SECOND) for after in (0, 30, 60, 3600)]
    assert seen[0] != seen[1] != seen[2] == seen[3]
    ends = []
    for after in (60, 3600):  # states with equal keys also react alike
        controller, now = copy_of(talk.controller), talk.now + after * SECOND
        effects = controller.handle(ev.ReplicaExited(r("trainer/0"), 1, "exit", 1), now)
        ends.append((effects, keys.of_controller(controller, sessions, now)))
    assert ends[0] == ends[1]
