"""Two outcomes of one job side by side, such as a run and its simulation, or a simulation and its variant.

Their lines and times differ. Their incidents can be aligned all the same, in their order, by kind and root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from flowdist.control.protocol.ids import WorldName
from flowdist.record.accounts import BUCKETS, Bucket
from flowdist.sim.experiment.outcome import IncidentOutcome, Outcome

Pair = tuple[IncidentOutcome | None, IncidentOutcome | None]


class Figure(NamedTuple):
    """One figure of a run as it was, and as it was predicted, in ns."""

    what: str
    real_ns: int
    predicted_ns: int

    @property
    def error(self) -> float | None:
        """Return the error as a share of the real figure; 0.0 if both are 0, None if the real figure alone is 0."""
        off = abs(self.predicted_ns - self.real_ns)
        return off / self.real_ns if self.real_ns else None if off else 0.0


class Comparison(NamedTuple):
    """Two outcomes side by side. What the properties return is computed when they are asked."""

    a: Outcome
    b: Outcome

    @property
    def pairs(self) -> list[Pair]:
        """Return the incidents in pairs, in their order; None where one of the two has no such incident.

        Incidents of the same kind and root are pairs. Between two pairs, incidents that are left over on both sides are
        paired one by one, since the same event may be judged differently.
        """
        causes = [[each.cause for each in one.incidents] for one in self]
        pairs: list[Pair] = []
        for _, i, i_end, j, j_end in SequenceMatcher(None, causes[0], causes[1], autojunk=False).get_opcodes():
            ones: list[IncidentOutcome | None] = list(self.a.incidents[i:i_end])
            others: list[IncidentOutcome | None] = list(self.b.incidents[j:j_end])
            length = max(len(ones), len(others))
            ones += [None] * (length - len(ones))
            others += [None] * (length - len(others))
            pairs += zip(ones, others, strict=True)
        return pairs

    @property
    def matches(self) -> dict[int, IncidentOutcome]:
        """Return the incidents of `b` that have the same kind and root in `a`, by the number that they have in `a`."""
        return {one.number: other for one, other in self.pairs if one and other and one.cause == other.cause}

    @property
    def gone(self) -> list[IncidentOutcome]:
        """Return the incidents of `a` that `b` does not have."""
        matches = self.matches
        return [one for one in self.a.incidents if one.number not in matches]

    @property
    def saved_ns(self) -> int:
        """Return by how many ns `b` ends earlier, if both jobs succeed; else 0."""
        return self.a.lasted_ns - self.b.lasted_ns if self.a.is_good and self.b.is_good else 0

    @property
    def differences(self) -> list[str]:
        """Return, in sentences, the decisions that are not the same in both; none if all are."""
        a, b = self
        texts = [text for pair in self.pairs for text in _pair_differences(*pair)]
        texts += [f"outcome: {a.outcome} / {b.outcome}"] * (a.outcome != b.outcome)
        worlds = dict.fromkeys([*a.worlds, *b.worlds])
        return texts + [text for world in worlds for text in _world_differences(world, a, b)]

    @property
    def figures(self) -> list[Figure]:
        """Return the length, the time to the next step of each incident that both have, and each role's lost work."""
        found = [Figure("total", self.a.lasted_ns, self.b.lasted_ns)]
        for one, other in self.pairs:
            if one and other and one.next_step_ns is not None and other.next_step_ns is not None:
                found.append(Figure(f"incident {one.number}, next step", one.next_step_ns, other.next_step_ns))
        real, predicted = self.a.lost_ns, self.b.lost_ns
        for role in dict.fromkeys([*real, *predicted]):
            figure = Figure(f"lost work of {role}", real.get(role, 0), predicted.get(role, 0))
            found += [figure] if figure.real_ns or figure.predicted_ns else []
        return found

    # The same job in both modes.

    @property
    def is_alike(self) -> bool:
        """Return whether outcome, numbers of generations, and number of incidents of each kind are the same."""
        a, b = self
        return (a.outcome, a.generations, a.causes) == (b.outcome, b.generations, b.causes)

    @property
    def is_equal(self) -> bool:
        """Return whether the two are alike, and their times, steps, lost work and goodput exactly the same."""
        one, other = ((each.lasted_ns, each.steps, each.lost_ns, each.spent, each.goodput) for each in self)
        return self.is_alike and one == other

    def difference(self, bucket: Bucket) -> float:
        """Return the share of all time that `a` has in the bucket, less the share that `b` has: -1 to 1."""
        return mean_share([self.a], bucket) - mean_share([self.b], bucket)

    @property
    def worst(self) -> float:
        """Return the largest absolute `difference` of any bucket: 0 to 1."""
        return max(abs(self.difference(bucket)) for bucket in BUCKETS)


compare = Comparison


def mean_share(outcomes: Iterable[Outcome], bucket: Bucket) -> float:
    """Return the share of one bucket in the time of all roles of some outcomes, from 0 to 1."""
    spent = [buckets for outcome in outcomes for buckets in outcome.spent.values()]
    return sum(each[bucket] for each in spent) / max(1, sum(sum(each.values()) for each in spent))


def decision_differences(one: IncidentOutcome, other: IncidentOutcome) -> Iterator[tuple[str, object, object]]:
    """Yield each decision that differs between two incidents: its name, and both values."""
    for (name, x), y in zip(one.decision.items(), other.decision.values(), strict=True):
        if x != y:
            yield name, x, y


def _pair_differences(one: IncidentOutcome | None, other: IncidentOutcome | None) -> list[str]:
    if one is None or other is None:
        known = one or other
        assert known is not None
        side = "first" if other is None else "second"
        return [f"incident {known.number} ({known.kind} of {known.root}) is in the {side} record alone"]
    names = f"incident {one.number}" if one.number == other.number else f"incidents {one.number} and {other.number}"
    return [f"{names}: {name}: {value_text(x)} / {value_text(y)}" for name, x, y in decision_differences(one, other)]


def _world_differences(world: WorldName, a: Outcome, b: Outcome) -> list[str]:
    """Return the first generation of a world whose members differ, and nothing after it, which follows from it."""
    ones, others = a.worlds.get(world, ()), b.worlds.get(world, ())
    for number, (x, y) in enumerate(zip(ones, others, strict=False), 1):
        if x != y:
            return [f"{world}, generation {number}: {value_text(x)} / {value_text(y)}"]
    return [f"{world}: {len(ones)} generations / {len(others)}"] * (len(ones) != len(others))


def value_text(value: object) -> str:
    """Return one value of a decision in words."""
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, tuple) else str(value or "nothing")
