"""Verdict on a pair: whether its witnesses say the same.

Each pair is run on real processes three times: once with other faults, and twice with those of the plan. The first two
calibrate the simulator: it gets their times alone. Decisions are compared as `decisions` says. If the two real runs
themselves decide differently, the simulator has to agree with one of them. Where it agrees with none, it is asked again
with times between those that the three runs have shown: what depends on such a difference is no decision that could be
predicted.

Times are compared by role and bucket, for one replica. How much two real runs differ is measured over all pairs; the
simulator may be that far from the nearer of the two. Two things are ties here, too:

* most faults come after a checkpoint of the trainers. An evaluator, or a worker that works alone, commits at other
  moments: at each of its restarts, and at the end, the work of one interval may be lost or kept. So it is with the
  trainers at a fault that comes at a step or a time, and with services, which live as long as the trainers work;
* what a node does between its last heartbeat and its fence no record shows: where a plan cuts a node off, work, lost
  work and detection are one bucket.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flowdist.graph import MS, RoleGraph, RoleSpec
from tests.witnesses.decisions import Decision, Difference, first_difference
from tests.witnesses.pairs import BESIDE, Pair
from tests.witnesses.witness import Broken, Real, Witness, calibrations_of, really, replayed, simulated

LEAST_NS = 250 * MS  # some steps: reports come up to a heartbeat late
MOST_NS = 1000 * MS  # one pair beside a busy program would hide what is wrong in all others
UNSEEN = ("productive", "checkpoint", "restore", "stalled", "lost work", "unsaved at the end", "detection")
NOTICED = "work until it was noticed"
AROUND = 6  # decisions that are shown before and after the first difference


class Verdict(msgspec.Struct):
    """What became of a pair.

    `differs` has a text for each disagreement about decisions, with both stories around it. `is_race`: the two real
    runs decided differently. `varied` counts how often the simulator was asked again. `times` has by role and bucket
    the time in ns of one replica: of both real runs, and of the simulation. `intervals` has by role how many ns of work
    may be lost or kept because of the phase of checkpoints.
    """

    number: int
    took_s: float = 0.0
    decisions: int = 0
    is_race: bool = False
    varied: int = 0
    differs: list[str] = []
    times: dict[str, dict[str, tuple[int, int, int]]] = {}
    intervals: dict[str, int] = {}

    @property
    def word(self) -> str:
        """Return the verdict on the decisions in words."""
        if self.differs:
            return "DIFFERS"
        notes = ["the real runs differ"] * self.is_race + [f"simulated {self.varied + 1} times"] * bool(self.varied)
        return f"same ({', '.join(notes)})" if notes else "same"


def play(pair: Pair, folder: Path) -> Verdict:
    """Ask all witnesses of a pair, and return whether they decide the same."""
    began = time.monotonic()
    pair.write(folder)
    verdict = Verdict(pair.number)
    try:
        _play(pair, folder, verdict)
    except Broken as broken:
        verdict.differs.append(str(broken))
    verdict.took_s = time.monotonic() - began
    return verdict


def _play(pair: Pair, folder: Path, verdict: Verdict) -> None:
    rehearsal = really(folder, "rehearsal", pair.rehearsal, pair.sets)
    reals = [really(folder, name, pair.faults) for name in ("first", "second")]
    for real in reals:
        again = replayed(real.run)
        if again != real.witness._replace(name=again.name):
            verdict.differs.append(
                f"the journal of the {real.run.name} run, replayed, says something else than the run"
            )
    first, second = (real.witness for real in reals)
    verdict.decisions = len(first.decisions)
    verdict.is_race = first_difference(first.decisions, second.decisions) is not None
    found = _simulated(pair, [rehearsal, *reals], verdict)
    is_cut = any(":lost" in fault for fault in pair.faults)
    for role in reals[0].run.header.graph.roles:
        each = [_of_replica(role, witness, is_cut=is_cut) for witness in (first, second, found)]
        for bucket in dict.fromkeys(name for one in each for name in one):
            a, b, simulation = (one.get(bucket, 0) for one in each)
            verdict.times.setdefault(role.name, {})[bucket] = a, b, simulation
    verdict.intervals = intervals_of(pair, reals[0].run.header.graph, first.decisions)


def intervals_of(pair: Pair, graph: RoleGraph, decisions: Iterable[Decision]) -> dict[str, int]:
    """Return by role how many ns of work may be lost or kept because of the phase of checkpoints: see the top."""
    starts = Counter(one.about.partition("/")[0] for one in decisions if one.what == "starts")
    aside = sum("@checkpoint=" not in fault for fault in pair.faults)
    of_trainers = aside * graph.role("trainer").workload.checkpoint_every_ns
    return {
        role.name: round(starts[role.name] / role.max_replicas * role.workload.checkpoint_every_ns)
        if role.name in BESIDE
        else of_trainers
        for role in graph.roles
    }


def _of_replica(role: RoleSpec, witness: Witness, *, is_cut: bool) -> dict[str, int]:
    """Return the time in ns of one replica of a role, by bucket."""
    found: dict[str, int] = {}
    for (name, bucket), ns in witness.times.items():
        if name == role.name:
            shown = NOTICED if is_cut and bucket in UNSEEN else bucket
            found[shown] = found.get(shown, 0) + ns // role.max_replicas
    return found


def _simulated(pair: Pair, runs: list[Real], verdict: Verdict) -> Witness:
    """Return the first simulation that decides as one of the real runs; the first of all if none does."""
    _, *reals = runs
    tried: list[Witness] = []
    dice = random.Random(f"{pair.seed}/{pair.number}/times")
    for calibration in calibrations_of([real.run for real in runs], dice):
        found = simulated(pair, reals[0].run, calibration, seed=len(tried))  # how soon peers notice a death, too
        tried.append(found)
        differences = [first_difference(real.witness.decisions, found.decisions) for real in reals]
        if not all(differences):
            verdict.varied = len(tried) - 1
            return found
    difference = first_difference(reals[0].witness.decisions, tried[0].decisions)
    assert difference is not None
    verdict.differs.append(_shown(difference, reals[0].witness, tried[0]))
    return tried[0]


def _shown(difference: Difference, one: Witness, other: Witness) -> str:
    """Return a difference in words, with both stories around it."""
    lines = [f"    {difference.text}"]
    for witness, place in ((one, difference.a), (other, difference.b)):
        lines.append(f"    {witness.name}:")
        first = max(0, place - AROUND)
        for n, decision in enumerate(witness.decisions[first : place + AROUND + 1], first):
            lines.append(f"    {'>' if n == place else ' '} {decision}")
    return "\n".join(lines)


def noise_of(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Return by bucket how many ns two real runs that decide the same differ at most, for one replica; 1 s at most."""
    noise: dict[str, int] = {}
    for verdict in verdicts:
        for times in verdict.times.values():
            for bucket, (first, second, _) in times.items():
                off = 0 if verdict.is_race else abs(first - second)
                noise[bucket] = min(MOST_NS, max(noise.get(bucket, LEAST_NS), off))
    return noise


def beyond(verdict: Verdict, noise: dict[str, int]) -> Iterator[str]:
    """Yield a sentence for each bucket in which the simulation is further from both real runs than they are apart."""
    for role, times in verdict.times.items():
        for bucket, (first, second, simulation) in times.items():
            off = max(min(first, second) - simulation, simulation - max(first, second))
            if off > noise[bucket] + verdict.intervals.get(role, 0):
                shown = ", ".join(f"{ns / 1e9:.2f} s" for ns in (first, second))
                yield f"{role}, {bucket}: real {shown}; simulated {simulation / 1e9:.2f} s"
