"""Each invariant names what is wrong; the checker of a campaign, which looks at changes, finds it too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest

from flowdist.control.invariants import EVERY, InvariantChecker, check_job
from flowdist.control.job.deadlines import Deadlines, Due
from flowdist.control.job.state import Charge, JobState
from flowdist.control.protocol import events as ev
from flowdist.graph import Gate, NodeSpec, RestartPolicy
from flowdist.graph.capacity import Capacity
from tests.control.harness import TCP, joined, r, role

Spoil = Callable[[JobState], object]
SOMETHING = ev.NodeLeft("elsewhere")


@cache
def _running() -> JobState:
    """Return a job of a ready server, a gang in recovery, and loose workers of which one was restarted."""
    loose, own = RestartPolicy("replica", max_restarts=2), RestartPolicy("role", max_restarts=3)
    roles = (
        role("ps", kind="service", ready=TCP, ports=("rpc",), min_replicas=1, max_replicas=1),
        role("trainer", gates=(Gate("ps", "ready"),), min_replicas=2, max_replicas=3, restart=own, gang=True),
        role("actor", restart=loose, min_replicas=1, max_replicas=3),
    )
    talk = joined(*roles, nodes=3, cpu=3.0)
    talk.fail("actor/1")
    talk.auto = False
    talk.fail("trainer/1")  # its incident is open: the others were told to stop
    check_job(talk.job)
    return talk.job


def after(checker: InvariantChecker, job: JobState, event: ev.Event) -> None:
    checker.note(job, event, (), n=1, now=job.now)


def job_that_runs() -> JobState:
    return copy.deepcopy(_running())


def assign(path: str, value: object) -> Spoil:
    """Return a change of one attribute, such as `replicas trainer/1 phase`: the table, the key, the attribute."""

    def spoil(job: JobState) -> None:
        what, name, attribute = path.split()
        known = getattr(job, what)
        setattr(known[r(name)] if what == "replicas" else known[name], attribute, value)

    return spoil


def count(path: str, key: str) -> Spoil:
    """Return a change that adds one to an entry of a table of counts."""

    def spoil(job: JobState) -> None:
        what, name, attribute = path.split()
        getattr(getattr(job, what)[name], attribute)[key] += 1

    return spoil


SEEN_AT_ONCE: list[tuple[Spoil, str]] = [
    (lambda job: job.free.pop("node1"), "node1 is offered"),
    (lambda job: job.free.__setitem__("node1", Capacity(1, 0, 0)), "node1 is offered"),
    (lambda job: job.usable.pop(), "are usable, not"),
    (count("worlds trainer counts", "running"), "trainer: miscounted"),
    (assign("worlds trainer phase", "waiting"), "of trainer {'trainer'} wait"),
    (assign("worlds trainer phase", "opening"), "trainer is opening, but"),
    (assign("worlds trainer phase", "running"), "trainer runs on while"),
    (assign("worlds actor/0 generation", 9), "actor/0 mixes generations"),
    (assign("worlds trainer members", (r("trainer/1"), r("trainer/0"))), "out of order"),
    (assign("worlds trainer members", (r("actor/1"),)), "of another world"),
    (assign("worlds trainer members", (r("trainer/0"),)), "of the generation of trainer"),
    (assign("worlds trainer incident", None), "stops for no incident and is not retiring"),
    (assign("worlds actor/1 incident", 2), "actor/1 is not in its incident"),
    (lambda job: job.worlds["trainer"].stalls.update(["progress"]), "the stalls of trainer are miscounted"),
    (count("roles actor seated", "running"), "actor: miscounted"),
    (count("roles actor unseated", "gone"), "actor: miscounted"),
    (assign("roles actor seats", 7), "the seats of actor are miscounted"),
    (lambda job: job.roles["actor"].vacant.append(2), "have no seat"),
    (lambda job: job.roles["ps"].portless.update({r("ps/0"): None}), "have no ports"),
    (lambda job: job.roles["actor"].waiting.update({"actor/1": None}), "wait, not"),
    (lambda job: job.roles["actor"].leaving.update({"actor/1": None}), "leave, not"),
    (lambda job: job.due.set(Due("ready", "ps/0"), 99), "have a deadline to get ready by"),
    (lambda job: setattr(job, "due", Deadlines()) or job.open.clear(), "the open incidents are miscounted"),
    (lambda job: job.open.update({1: None}), "the open incidents are miscounted"),
]
SEEN_SOON: list[tuple[Spoil, str]] = [
    (assign("replicas trainer/0 node", "node2"), "node"),
    (assign("replicas trainer/0 gpus", (0,)), "has 1 GPUs, not 0"),
    (assign("replicas actor/1 order", None), "actor/1 runs without an order"),
    (assign("replicas actor/1 attempt", 0), "actor/1 runs without an order"),
    (assign("replicas actor/1 stalled", "progress"), "the stalls of actor/1 are miscounted"),
    (assign("nodes node1 free", Capacity(0, 0, 0)), "node1 has"),
    (assign("nodes node1 spec", NodeSpec("node1", cpu=1.0)), "node1 is over its capacity"),
    (assign("nodes node1 usable", False), "node1 is offered"),
    (assign("nodes node1 cordoned", "bad"), "node1 is offered"),
    (lambda job: job.nodes["node2"].stores.update({"trainer": None}), "has a store of trainer that is elsewhere"),
    (lambda job: job.live_at.update({0: 17}), "live, by the depth of their roles"),
    (lambda job: job.candidate_indexes[0].put("node1", (-9, 1, "node1")), "fits"),
    (lambda job: setattr(job.candidate_indexes[0], "slots", 99), "fits 99 times"),
    (lambda job: job.roles["actor"].charges.append(Charge(5, 0)), "actor was charged"),
    (lambda job: job.roles["trainer"].lost_in.clear(), "trainer was lost in"),
    (lambda job: job.roles["actor"].spent.clear(), "actor has spent"),
    (lambda job: setattr(job, "outcome", "succeeded"), "the job has succeeded, but"),
]


@pytest.mark.parametrize(("spoil", "words"), SEEN_AT_ONCE + SEEN_SOON)
def test_an_invariant_names_what_is_wrong(spoil: Spoil, words: str) -> None:
    job = job_that_runs()
    spoil(job)
    with pytest.raises(AssertionError, match=words):
        check_job(job)


@pytest.mark.parametrize("spoil", [spoil for spoil, _ in SEEN_AT_ONCE])
def test_what_differs_is_checked_after_the_moment_in_which_it_came_to_differ(spoil: Spoil) -> None:
    job, checker = job_that_runs(), InvariantChecker("changed")
    checker.check(job)
    spoil(job)
    after(checker, job, SOMETHING)
    with pytest.raises(AssertionError):
        checker.check(job)


@pytest.mark.parametrize("spoil", [spoil for spoil, _ in SEEN_SOON])
def test_what_no_key_shows_is_seen_when_all_is_checked(spoil: Spoil) -> None:
    job, checker = job_that_runs(), InvariantChecker("changed")
    checker.check(job)
    spoil(job)
    with pytest.raises(AssertionError):
        for _ in range(EVERY):
            after(checker, job, SOMETHING)
            checker.check(job)


def test_what_differs_and_is_right_is_no_complaint() -> None:
    talk = joined(role("actor", restart=RestartPolicy("replica"), min_replicas=1, max_replicas=2), nodes=2)
    checker = InvariantChecker("changed")
    checker.check(talk.job)
    talk.gone("node1")
    after(checker, talk.job, ev.NodeGone("node1"))
    checker.check(talk.job)
    assert not talk.job.nodes["node1"].usable


def test_news_of_progress_is_no_reason_to_look() -> None:
    job, checker = job_that_runs(), InvariantChecker("changed")
    checker.check(job)
    count("roles actor seated", "running")(job)
    after(checker, job, ev.ReplicaProgressed(r("trainer/0"), 1, 7))
    checker.check(job)
    after(checker, job, ev.NodeLeft("node7"))
    with pytest.raises(AssertionError):
        checker.check(job)
