"""Why a run ended as it did: the search as conversations and properties, and random runs with one decisive fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist import Node, Restart, Topology, Workload
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.graph import SECOND
from flowdist.record.journal import Header, Line
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.outcome import IncidentOutcome, Outcome
from flowdist.sim.experiment.outcome import of_record as outcome_of
from flowdist.sim.experiment.record import of_record
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.why.played import Counterfactuals
from flowdist.sim.why.search import PLAYS_MAX, Answer, Cause, causes_of, is_better, named, search, without
from flowdist.sim.why.words import cause_words, end_words, sentence
from flowdist.testing.kit import graph_of
from tests.choosing import examples, slow
from tests.sim.why_cases import LEAST, SOURCES, Source, answer_of, verdicts

GOOD, BAD = "succeeded", "failed"


def causes(count: int) -> list[Cause]:
    return causes_of(parse_plan([f"node{i}@{10 + i}s" for i in range(count)]))


def searched(
    all_: Sequence[Cause], end: Callable[[set[str]], Outcome], most: int = PLAYS_MAX
) -> tuple[Answer, list[tuple[str, ...]]]:
    """Return the answer for a job whose end is a function of the targets that are left out, and what was played."""
    asked: list[tuple[str, ...]] = []

    def play(removed: Sequence[Cause]) -> Outcome:
        asked.append(tuple(cause.target for cause in removed))
        return end({cause.target for cause in removed})

    return search(all_, play, most), asked


def targets(answer: Answer) -> list[list[str]]:
    return [[cause.target for cause in one.removed] for one in answer.causes]


def lasts(*costs: int) -> Callable[[set[str]], Outcome]:
    """Return ends of a job of 100 s, to which each node that is not left out adds its cost (s)."""
    return lambda left: Outcome(GOOD, SECOND * (100 + sum(c for i, c in enumerate(costs) if f"node{i}" not in left)))


def test_the_most_costly_comes_first_and_what_costs_nothing_is_not_named() -> None:
    answer, asked = searched(causes(3), lasts(5, 0, 40))
    assert targets(answer) == [["node2"], ["node0"]] and answer.n_causes == 3
    assert answer.calm.lasted_ns == 100 * SECOND
    assert len(asked) == 5, "the job as it was, without each of three, and without all"


def test_two_that_hide_each_other_are_named_together_and_no_third() -> None:
    def end(left: set[str]) -> Outcome:
        return Outcome(GOOD, SECOND * (100 + 60 * (not {"node0", "node2"} <= left) + 3 * ("node1" not in left)))

    answer, asked = searched(causes(4), end)
    assert targets(answer) == [["node0", "node2"], ["node1"]] and answer.n_pairs == 6
    assert len(asked) == len({frozenset(one) for one in asked}), "each set is played once"


def test_three_that_hide_each_other_are_found_as_a_smallest_set() -> None:
    hidden = {"node0", "node1", "node3"}
    answer, _ = searched(causes(5), lambda left: Outcome(GOOD if hidden <= left else BAD, 100 * SECOND))
    assert targets(answer) == [["node0", "node1", "node3"]]


def test_a_fault_without_which_a_failed_job_succeeds_is_named_however_long_it_takes() -> None:
    def end(left: set[str]) -> Outcome:
        if "node1" in left:
            return Outcome(GOOD, 900 * SECOND)
        return Outcome(BAD, (20 if "node0" in left else 10) * SECOND)

    answer, asked = searched(causes(3), end)
    assert targets(answer) == [["node1"]] and answer.causes[0].is_enough
    assert "is enough to prevent that" in sentence(answer.again, answer.causes[0])
    assert answer.n_pairs == 0 and len(asked) == 6, "all but node1 were left out as well: it is enough"


def test_of_faults_that_had_to_come_together_none_is_enough() -> None:
    answer, _ = searched(causes(3), lambda left: Outcome(GOOD if left & {"node0", "node2"} else BAD, 100 * SECOND))
    assert targets(answer) == [["node0"], ["node2"]]
    assert not any(one.is_enough for one in answer.causes)


def test_one_that_is_enough_comes_before_one_that_only_shifts_it() -> None:
    """A small fault can move the job so that the fatal one hits nothing: to leave it out helps, but it is no cause."""

    def end(left: set[str]) -> Outcome:
        if "node1" in left:
            return Outcome(GOOD, 120 * SECOND)
        return Outcome(GOOD, 100 * SECOND) if left == {"node0"} else Outcome(BAD, 50 * SECOND)

    answer, _ = searched(causes(3), end)
    assert targets(answer) == [["node1"], ["node0"]]


def test_a_job_that_fails_without_any_fault_has_no_cause_among_them() -> None:
    answer, asked = searched(causes(3), lambda left: Outcome(BAD, 100 * SECOND))
    assert answer.causes == () and len(asked) == 5, "no pair is tried"


def test_a_job_to_which_nothing_happened_is_played_once() -> None:
    answer, asked = searched([], lambda left: Outcome(BAD, 100 * SECOND))
    assert answer == Answer(answer.again, answer.again, (), 0) and asked == [()]


def test_of_many_pairs_the_closest_are_tried_and_the_rest_is_counted() -> None:
    many = causes(20)  # 190 pairs
    answer, asked = searched(many, lambda left: Outcome(GOOD, SECOND * (100 + 50 * (not {"node0", "node19"} <= left))))
    assert (answer.n_pairs, answer.n_untried) == (PLAYS_MAX // 2, 190 - PLAYS_MAX // 2)
    assert sum(len(one) == 2 for one in asked) < PLAYS_MAX // 2 + 10, "most of the rest are not played"
    assert targets(answer) == [["node0", "node19"]], "the search for a smallest set finds the pair that was not tried"


def test_the_number_of_simulations_is_bounded_and_what_was_left_out_is_counted() -> None:
    """A run with thousands of faults was played thousands of times."""
    many = causes(30)  # 435 pairs; the first four hide each other
    ends = lambda left: Outcome(GOOD, SECOND * (100 + 50 * (not {f"node{i}" for i in range(4)} <= left)))  # noqa: E731
    answer, asked = searched(many, ends, 20)
    assert len(asked) == 20 and answer.calm.lasted_ns == 100 * SECOND, "that is played in any case"
    assert (answer.n_causes, answer.n_alone, answer.n_pairs, answer.n_untried) == (18, 12, 0, 435)
    assert [len(one.removed) for one in answer.causes] == [30] and answer.n_kept == 30, "nothing was put back"
    answer, asked = searched(many, ends, 100)
    assert len(asked) <= 100 and (answer.n_alone, answer.n_pairs, answer.n_kept) == (0, 50, 12)
    assert {f"node{i}" for i in range(4)} <= set(targets(answer)[0]) and len(targets(answer)[0]) == 16
    answer, _ = searched(many, ends, 1000)
    assert targets(answer) == [[f"node{i}" for i in range(4)]] and (answer.n_untried, answer.n_kept) == (0, 0)


@pytest.mark.parametrize("most", [2, 5, 9])
def test_whatever_the_bound_is_it_holds_and_what_is_named_helps(most: int) -> None:
    for lost in (2, 3, 6):
        needed = {f"node{i}" for i in range(lost)}
        for outcome in (GOOD, BAD):
            answer, asked = searched(
                causes(6),
                lambda left, n=needed, o=outcome: Outcome(GOOD if n <= left else o, SECOND * (200 - len(left))),
                most,
            )
            assert len(asked) <= most and answer.n_causes + answer.n_alone == 6
            assert all(is_better(answer.again, one.end) for one in answer.causes)


@given(st.data())
@settings(max_examples=examples(30, 500), deadline=None)
def test_what_is_named_helps_and_needs_each_of_its_causes(data: st.DataObject) -> None:
    """The job fails unless one of some sets is left out; costs are added for each cause that is not."""
    count = data.draw(st.integers(1, 6))
    names = [f"node{i}" for i in range(count)]
    cuts = data.draw(st.lists(st.sets(st.sampled_from(names), min_size=1, max_size=3), max_size=3))
    costs = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))

    def end(left: set[str]) -> Outcome:
        is_good = not cuts or any(cut <= left for cut in cuts)
        return Outcome(GOOD if is_good else BAD, lasts(*costs)(left).lasted_ns)

    answer, asked = searched(causes(count), end)
    assert len(asked) == len({frozenset(one) for one in asked})
    for one in answer.causes:
        left = {cause.target for cause in one.removed}
        assert is_better(answer.again, one.end) and one.end == end(left)
        if cuts:
            assert not any(end(left - {name}).is_good for name in left), "one cause fewer does not help"
    if is_better(answer.again, answer.calm):
        assert answer.causes, "what is better without any fault has a cause"
    if not cuts:
        assert {name for name, cost in zip(names, costs, strict=True) if cost} == {name for (name,) in targets(answer)}
        assert [one.end.lasted_ns for one in answer.causes] == sorted(one.end.lasted_ns for one in answer.causes)


def test_incidents_that_a_counterfactual_lacks_are_numbered() -> None:
    ends = [
        Outcome(GOOD, 1, "", tuple(IncidentOutcome(n, kind, "a") for n, kind in enumerate(kinds, 1)))
        for kinds in ("xyvz", "xzw")
    ]
    found = compare(ends[0], ends[1])
    assert [one.number for one in found.gone] == [2, 3] and found.matches[4].number == 2
    assert compare(ends[0], ends[0]).gone == []


def test_a_node_that_is_not_added_takes_its_faults_with_it() -> None:
    plan = parse_plan(
        ["node9@20s", "node1@5s:partition=node9/3s", "node1@9s"], ["trainer=2@3s"], ["node9@10s"], ["node9@30s"]
    )
    found = causes_of(plan)
    assert [cause.text for cause in found] == [
        *("trainer=2@3s", "node1@5s:partition=node9/3s", "node1@9s", "node9@10s", "node9@20s", "node9@30s"),
    ]
    assert [cause.is_harm for cause in found] == [False, True, True, False, True, True]
    left = without(plan, [found[3]])
    assert [cause.text for cause in causes_of(left)] == ["trainer=2@3s", "node1@9s"]
    assert without(plan, []) == plan and without(plan, found) == parse_plan()


def test_a_fault_that_the_run_had_not_is_refused_with_those_that_it_had() -> None:
    found = causes_of(parse_plan(["node1@5s", "trainer/0@step=trainer,5:exit=3"]))
    assert named(found, ["node1@5s"]) == found[:1]
    with pytest.raises(FlowdistError) as refused:
        named(found, ["node2@5s", "node1@5s", "x"])
    assert refused.value.message.count("the run had no such fault") == 2
    assert refused.value.help == "name one of node1@5s, trainer/0@step=trainer,5:exit=3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node3@12m4s/2m", "the loss of node3 at 12m4s"),
        ("trainer/0@80.0042s:exit=3", "the failure of trainer/0 (exit code 3) at 1m20s"),
        ("trainer/0@1m", "the death of trainer/0 at 1m"),
        ("controller@1m", "the death of the controller at 1m"),
        ("trainer/0@step=trainer,500:hang", "the hang of trainer/0 at step 500 of trainer"),
        ("trainer/0@step=trainer,500+5s:oom", "the death of trainer/0 (out of memory) 5s after step 500 of trainer"),
        ("trainer/1@every=18m:slow=4x/1m", "the slowness of trainer/1 (4x) every 18m"),
        ("node1@ready=ps+2s:xid=79,1", "the GPU error of node1 (Xid 79) 2s after the first readiness of ps"),
        ("zone=a@30s:lost", "the silence of the nodes with zone=a at 30s"),
    ],
)
def test_a_fault_is_named_in_words(text: str, words: str) -> None:
    (cause,) = causes_of(parse_plan([text]))
    assert cause_words(cause) == words


def test_orders_are_named_in_words() -> None:
    orders = causes_of(parse_plan([], ["trainer=4@1m"], ["node9@2m"], ["node1@3m"]))
    assert [cause_words(cause) for cause in orders] == [
        *("the scaling of trainer to 4 at 1m", "the arrival of node9 at 2m", "the drain of node1 at 3m"),
    ]


# Simulated jobs.


def job(replicas: str = "4", **workload: str) -> Topology:
    t = Topology("why", nodes=4 * [Node(cpu=1)])
    load = {"startup": "5s", "checkpoint_every": "1m", "checkpoint_time": "1s", **workload}
    restart = Restart(max_restarts=9)
    t.role(
        "trainer",
        "true",
        replicas=replicas,
        pending_timeout="40m",
        restart=restart,
        workload=Workload(steps=600, **load),  # type: ignore[arg-type]
    )
    return t


def record_of(result: SimResult) -> tuple[Header, list[Line]]:
    header, *lines = result.lines
    assert isinstance(header, Header)
    return header, lines


@pytest.mark.parametrize("seed", [0, 7])
def test_the_simulation_of_a_trace_is_the_same_to_the_nanosecond(seed: int) -> None:
    faults = ["trainer/0@90s:exit=3", "node1@3m/2m", "trainer/1@4m:slow=2x/1m", "trainer@step=trainer,300:hang"]
    faults += ["trainer@9m:scale=3", "extra@2m:add", "node0@8m:pause/1s"]
    plan = parse_plan(faults, ["trainer=4@10m"], ["spare@3m"], ["node2@6m"])
    graph = graph_of(job("2:4"))
    result = Simulation(graph, plan, seed=seed, schedule=3, arrival_ns=SECOND).run(20 * 60 * SECOND)
    header, lines = record_of(result)
    again = of_record(header, lines)
    assert again.arrival_ns == SECOND and again.seed == seed and again.schedule == 3
    assert again.simulation().run(20 * 60 * SECOND).digest == result.digest
    assert len(again.plan.adds) == len(again.plan.scales) == len(again.plan.drains) == 1


def test_nodes_lost_together_are_named_together() -> None:
    """The job waits for both nodes: to keep either of them alone saves nothing."""
    result = Simulation(graph_of(job()), parse_plan(["node1@3m/20m", "node2@3m/20m", "trainer/0@90s"])).run()
    answer = answer_of(*record_of(result))
    assert targets(answer)[0] == ["node1", "node2"]
    text = sentence(answer.again, answer.causes[0])
    assert text.startswith("Without the loss of node1 at 3m and the loss of node2 at 3m the job would have ended 20m")


def test_the_cost_of_one_incident_is_that_of_its_fault() -> None:
    plan = parse_plan(["node1@3m/10m", "trainer/0@90s:exit=3", "trainer/0@20m:exit=4"])
    header, lines = record_of(Simulation(graph_of(job()), plan).run())
    was = outcome_of(header, lines, strict=True)
    played = Counterfactuals(of_record(header, lines), was.lasted_ns, lambda now, events: None)
    first, second = (played.cost_of(number, was) for number in (1, 2))
    assert (first.incident.kind, first.cause.text) == ("exit", "trainer/0@90s:exit=3")
    assert (second.incident.kind, second.cause.text) == ("node_lost", "node1@3m/10m")
    assert 9 * 60 * SECOND < second.again.lasted_ns - second.end.lasted_ns < 12 * 60 * SECOND
    with pytest.raises(FlowdistError, match="there is no incident 4: the run has 3 incidents"):
        played.cost_of(4, was)


def test_an_unfinished_job_ends_with_what_it_waits_for() -> None:
    header, lines = record_of(Simulation(graph_of(job()), parse_plan(["trainer/0@90s:hang"])).run())
    answer = answer_of(header, lines)
    assert "(waiting for trainer/0 to finish" in end_words(answer.again)
    assert end_words(answer.again).startswith("unfinished after ")
    assert targets(answer) == [["trainer/0"]]


@pytest.mark.parametrize("source", SOURCES)
def test_the_decisive_fault_is_named_first_in_a_few_random_runs(source: Source) -> None:
    assert all(verdict.is_right for verdict in verdicts(2, 1, source))


@pytest.mark.parametrize("source", slow(SOURCES))
@pytest.mark.timeout(240)
def test_the_decisive_fault_is_named_first_in_95_of_100_random_runs(source: Source) -> None:
    found = verdicts(100, 1, source)
    wrong = [f"seed {one.case.seed}: {one.case.decisive}, not {one.first}" for one in found if not one.is_right]
    assert len(found) == 100 and len(wrong) <= 100 * (1 - LEAST) + 1e-9, wrong
