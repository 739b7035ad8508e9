"""Story of a record: its incidents, what was decided about each, the worlds that formed, and what it cost.

Two records of the same job, such as a real run and its simulation, have different lines and times. Their stories can be
compared all the same: `align` pairs incidents in their order, and says which decisions differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from flowdist.control.job.facts import Incident
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import WorldName
from flowdist.record.journal import Header, Line, Record
from flowdist.record.replay import Replay


class IncidentStory(NamedTuple):
    """One incident, what was decided about it, and how long it took. Times are ns.

    `next_step_ns` is the time from its opening until its worlds step again, or where no step is known, until their
    workers run again or get ready; None if that never came. It contains the back-off. `re_formed_ns` is the time until
    all workers of its worlds ran again.
    """

    number: int
    kind: str
    root: str
    opened_ns: int
    restarted: tuple[str, ...]
    stayed: tuple[str, ...]
    charged_to: str | None
    result: str
    next_step_ns: int | None
    re_formed_ns: int | None = None

    @property
    def decision(self) -> dict[str, object]:
        """Return what the controller decided, by its name in words."""
        names = ("cause", "root", "restarted", "stayed in place", "charged to", "result")
        values = (self.kind, self.root, self.restarted, self.stayed, self.charged_to, self.result)
        return dict(zip(names, values, strict=True))


class Story(NamedTuple):
    """Outcome, length, incidents, worlds and lost work of a job, from its record.

    `worlds` has the members of each generation, in the order of their ranks, by world. `lost_ns` is the lost work of
    each role: the time of its worlds, however many members each has.
    """

    outcome: str | None
    lasted_ns: int
    incidents: tuple[IncidentStory, ...]
    worlds: dict[WorldName, tuple[tuple[str, ...], ...]]
    lost_ns: dict[str, int]


class Alignment(NamedTuple):
    """Two stories side by side: pairs of incidents, None where one of the two has no such incident.

    `differences` says in sentences which decisions are not the same in both; there is none if all are.
    """

    a: Story
    b: Story
    pairs: tuple[tuple[IncidentStory | None, IncidentStory | None], ...]
    differences: tuple[str, ...]


def story_of(header: Header, lines: Iterable[Line]) -> Story:
    """Return the story of a record.

    Raises:
        BadLine: A line cannot be replayed.
    """
    replay, worlds = Replay(header), dict[WorldName, dict[int, list[StartReplica]]]()
    for line in lines:
        replay.hear(line)
        for effect in line.effects if isinstance(line, Record) else ():
            if isinstance(effect, StartReplica):
                worlds.setdefault(effect.world, {}).setdefault(effect.generation, []).append(effect)
    formed = {
        name: tuple(_members(generations[n]) for n in sorted(generations)) for name, generations in worlds.items()
    }
    incidents = tuple(map(_incident, replay.job.incidents))
    return Story(replay.job.outcome, replay.sheet.lasted(), incidents, formed, replay.sheet.lost())


def _members(starts: Sequence[StartReplica]) -> tuple[str, ...]:
    in_order = sorted(starts, key=lambda start: start.rank)
    return tuple(
        dict.fromkeys(str(start.replica) for start in in_order)
    )  # an order is repeated after a lost connection


def _incident(incident: Incident) -> IncidentStory:
    restarted = tuple(sorted(str(replica) for replica in incident.restarted if replica not in incident.stayed))
    next_step = incident.took_ns if incident.first_step_ns is None else incident.first_step_ns
    return IncidentStory(
        incident.number,
        incident.kind,
        incident.root,
        incident.opened_ns,
        restarted,
        tuple(sorted(map(str, incident.stayed))),
        incident.charged_to,
        incident.result,
        next_step,
        incident.took_ns,
    )


def align(a: Story, b: Story) -> Alignment:
    """Pair the incidents of two stories in their order, and return both with the decisions that differ.

    Incidents of the same cause and root are pairs. Between two pairs, incidents that are left over on both sides are
    paired one by one, since the same event may be judged differently.
    """
    keys = [[(each.kind, each.root) for each in story.incidents] for story in (a, b)]
    pairs: list[tuple[IncidentStory | None, IncidentStory | None]] = []
    for _, i, i_end, j, j_end in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        ones: list[IncidentStory | None] = list(a.incidents[i:i_end])
        others: list[IncidentStory | None] = list(b.incidents[j:j_end])
        length = max(len(ones), len(others))
        ones += [None] * (length - len(ones))
        others += [None] * (length - len(others))
        pairs += zip(ones, others, strict=True)
    texts = [text for pair in pairs for text in _pair_differences(*pair)]
    texts += [f"outcome: {a.outcome} / {b.outcome}"] * (a.outcome != b.outcome)
    texts += [text for world in dict.fromkeys([*a.worlds, *b.worlds]) for text in _world_differences(world, a, b)]
    return Alignment(a, b, tuple(pairs), tuple(texts))


def _pair_differences(one: IncidentStory | None, other: IncidentStory | None) -> list[str]:
    if one is None or other is None:
        known = one or other
        assert known is not None
        side = "first" if other is None else "second"
        return [f"incident {known.number} ({known.kind} of {known.root}) is in the {side} record alone"]
    names = f"incident {one.number}" if one.number == other.number else f"incidents {one.number} and {other.number}"
    pairs = zip(one.decision.items(), other.decision.values(), strict=True)
    return [f"{names}: {name}: {_text(x)} / {_text(y)}" for (name, x), y in pairs if x != y]


def _world_differences(world: WorldName, a: Story, b: Story) -> list[str]:
    """Return the first generation of a world whose members differ, and nothing after it, which follows from it."""
    ones, others = a.worlds.get(world, ()), b.worlds.get(world, ())
    for number, (x, y) in enumerate(zip(ones, others, strict=False), 1):
        if x != y:
            return [f"{world}, generation {number}: {_text(x)} / {_text(y)}"]
    return [f"{world}: {len(ones)} generations / {len(others)}"] * (len(ones) != len(others))


def _text(value: object) -> str:
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, tuple) else str(value or "nothing")
