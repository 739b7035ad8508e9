"""Random simulated runs with one decisive fault and some small ones: does `flowdist why` name the decisive one first?

    python -m tests.sim.why_cases [--cases 100] [--first 1]

A fault is decisive by construction:

    away    a node is away for a quarter of an hour or more, and the job needs all of its nodes
    gone    the same, for good
    hang    a worker hangs, which is noticed after a quarter of an hour
    rule    a failure that a rule makes fail the job
    work    a death just before the first checkpoint in twelve minutes
    slow    a worker is eight times slower for a quarter of an hour

The small faults cost a minute or two each, some three. Runs are judged in two forms: as the trace of a simulation, and
as the journal of a real run, which has neither the injected faults nor the true times of the workers.
The exit code is 1 if fewer than 95 of 100 are right.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from flowdist import Node, On, Restart, Topology, Workload
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import parse_fault
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import AccountLine, FaultLine, Header, Line
from flowdist.sim.experiment import outcome, record
from flowdist.sim.simulation import Simulation
from flowdist.sim.why.played import Counterfactuals
from flowdist.sim.why.search import Answer, search
from flowdist.testing.kit import graph_of
from flowdist.text.printable import table

Source = Literal["trace", "journal"]
SOURCES: tuple[Source, ...] = ("trace", "journal")
KINDS = ("away", "gone", "hang", "rule", "work", "slow")
FATAL_KINDS = ("gone", "rule")
LEAST = 0.95  # the share of cases that has to be right
FATAL = 77  # the exit code that a rule makes fail the job
STEPS = 1800  # of a second each
HANG_AFTER_S = 900


class Case(NamedTuple):
    """One run: the job, its faults, the kind of the decisive one, its text, and the record."""

    seed: int
    kind: str
    decisive: str
    header: Header
    lines: list[Line]


class Verdict(NamedTuple):
    """Whether `why` named the decisive fault of a case first, and what it named."""

    case: Case
    is_right: bool
    first: str


def cases(count: int, first: int, source: Source) -> Iterator[Case]:
    """Yield so many cases, drawn with the seeds from `first` on.

    A seed is passed over if its decisive fault is none after all: if it hits nothing, such as a replica that does not
    run at that moment, or if the job survives what should have ended it, such as a failure while its gang stops anyway.
    A worker that is slow leaves no event: it is not drawn for a journal.
    """
    seed = first
    while count:
        drawn = case(seed, source)
        seed += 1
        if drawn is not None:
            yield drawn
            count -= 1


def case(seed: int, source: Source) -> Case | None:
    """Draw and simulate a case; None if its decisive fault hits nothing."""
    draw = random.Random(seed)
    kinds = KINDS if source == "trace" else KINDS[:-1]
    kind, size = draw.choice(kinds), draw.randint(2, 4)
    graph = _graph(draw, size, checkpoint_every="12m" if kind == "work" else "1m")
    at, decisive = _decisive(draw, kind, size)
    # A small fault restarts the gang, which would end a hang or a slow worker.
    hidden = range(at - 60, at + HANG_AFTER_S + 60) if kind in ("hang", "slow") else range(0)
    times = [_noise_time(draw, kind, at, hidden) for _ in range(draw.randint(1, 4))]
    noise = [_noise(draw, size, decisive, time) for time in times]
    plan = parse_plan([decisive, *noise])
    result = Simulation(graph, plan, seed=draw.randint(0, 99), checks="paced", fast_forward=False).run()
    assert result.violation is None, f"seed {seed}: {result.violation}"
    header, *lines = result.lines
    assert isinstance(header, Header)
    hits = [line.spec for line in lines if isinstance(line, FaultLine)]
    is_decisive = decisive in hits and (kind not in FATAL_KINDS or result.job.outcome == "failed")
    return Case(seed, kind, decisive, header, lines) if is_decisive else None


def _graph(draw: random.Random, size: int, checkpoint_every: str) -> RoleGraph:
    """Return a job of one gang that fills all nodes, in half of the cases with a service."""
    t = Topology("why", nodes=size * [Node(cpu=2)])
    services = []
    if draw.random() < 0.5:
        ps = t.role("ps", "true", kind="service", replicas=1, cpu=0.5, restart=Restart("replica", max_restarts=20))
        services.append(ps.started())
    t.role(
        "trainer",
        "true",
        replicas=size,
        cpu=1.5,
        apart=True,
        hang_after=f"{HANG_AFTER_S}s",
        pending_timeout="40m",
        depends_on=services,
        restart=Restart(max_restarts=20, rules=[On(exit=FATAL, do="fail")]),
        workload=Workload(
            steps=STEPS,
            startup=draw.choice(["2s", "5s", "20s"]),
            checkpoint_every=checkpoint_every,
            checkpoint_time="1s",
            collective=draw.choice(["wait", "fail", "hang"]),
        ),
    )
    return graph_of(t)


def _decisive(draw: random.Random, kind: str, size: int) -> tuple[int, str]:
    """Return time (s) and text of a decisive fault."""
    at, node, trainer = draw.randint(120, 900), f"node{draw.randrange(size)}", f"trainer/{draw.randrange(size)}"
    match kind:
        case "away":
            how = draw.choice(["", ":lost", ":leave", ":preempt=20s"])
            return at, f"{node}@{at}s{how}/{draw.randint(900, 1800)}s"
        case "hang":
            return at, f"{trainer}@{at}s:hang"
        case "rule":
            return at, f"{trainer}@{at}s:exit={FATAL}"
        case "gone":
            return at, f"{node}@{at}s{draw.choice(['', ':lost', ':leave', ':preempt=20s'])}"
        case "work":
            at = draw.randint(660, 700)
            return at, f"{trainer}@{at}s{draw.choice(['', ':exit=3', ':oom'])}"
        case _:
            return at, f"{trainer}@{at}s:slow=8x/15m"


def _noise_time(draw: random.Random, kind: str, decisive_at: int, hidden: range) -> int:
    """Return the time (s) of a small fault, which is not one of those in `hidden`."""
    if kind == "work":  # there is little to lose soon after the start, or after the checkpoint that the fault prevents
        return draw.randint(20, 60) if draw.random() < 0.5 else decisive_at + draw.randint(170, 230)
    at = draw.randint(20, 1500)
    while at in hidden:
        at = draw.randint(20, 1500)
    return at


def _noise(draw: random.Random, size: int, decisive: str, at: int) -> str:
    """Return a small fault at a time (s) that hits another target than the decisive one."""
    target = decisive.partition("@")[0]
    nodes = [name for name in (f"node{i}" for i in range(size)) if name != target]
    trainers = [name for name in (f"trainer/{i}" for i in range(size)) if name != target]
    node, trainer = draw.choice(nodes), draw.choice(trainers)
    return draw.choice(
        [
            f"{trainer}@{at}s",
            f"{trainer}@{at}s:exit=3",
            f"{trainer}@{at}s:oom",
            f"{trainer}@{at}s:slow=2x/30s",
            f"{node}@{at}s/20s",
            f"{node}@{at}s:leave/20s",
            f"{node}@{at}s:pause/2s",
            f"controller@{at}s",
        ]
    )


def judge(case: Case, source: Source) -> Verdict:
    """Return whether `why` names the decisive fault of a case first."""
    header, lines = case.header, case.lines
    if source == "journal":
        header = msgspec.structs.replace(header, run_id="a-run")
        lines = [line for line in lines if not isinstance(line, FaultLine | AccountLine)]
    answer = answer_of(header, lines)
    if not answer.causes:
        return Verdict(case, False, "nothing")
    removed = answer.causes[0].removed
    return Verdict(case, _is_it(case, removed), " and ".join(cause.text for cause in removed))


def answer_of(header: Header, lines: list[Line]) -> Answer:
    """Return what `flowdist why` finds in a record."""
    was = outcome.of_record(header, lines, strict=True)
    played = Counterfactuals(record.of_record(header, lines), was.lasted_ns, lambda now, events: None)
    return search(played.causes, played.play)


def _is_it(case: Case, removed: tuple[object, ...]) -> bool:
    """Return whether these causes are the decisive fault alone: the same target, within two minutes.

    A journal shows when a node was missed or a worker was last seen, and not when the fault hit.
    """
    from flowdist.sim.why.search import Cause

    (cause, *others) = removed
    assert isinstance(cause, Cause)
    meant = parse_fault(case.decisive).when.at_ns
    assert meant is not None and cause.at_ns is not None
    is_near = abs(cause.at_ns - meant) <= 120 * SECOND
    return not others and cause.target == case.decisive.partition("@")[0] and is_near


def verdicts(count: int, first: int, source: Source) -> list[Verdict]:
    """Return the verdicts on so many cases."""
    return [judge(drawn, source) for drawn in cases(count, first, source)]


def main() -> None:
    """Print how often the decisive fault was named first, by its kind, and each case in which it was not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    asked = parser.parse_args()
    rows: list[tuple[str, ...]] = [("record", "named first", *KINDS)]
    wrong, is_good = [], True
    for source in SOURCES:
        found = verdicts(asked.cases, asked.first, source)
        right, drawn = (Counter(v.case.kind for v in found if v.is_right or all_) for all_ in (False, True))
        rows.append(
            (source, f"{right.total()} of {len(found)}", *(f"{right[kind]} of {drawn[kind]}" for kind in KINDS))
        )
        wrong += [(source, verdict) for verdict in found if not verdict.is_right]
        is_good = is_good and right.total() >= LEAST * len(found)
    print("\n".join(table(rows)))
    for source, verdict in wrong:
        print(f"{source}, seed {verdict.case.seed}: {verdict.case.decisive} was decisive, {verdict.first} was named")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
