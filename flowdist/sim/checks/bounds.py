"""Bounds on what failures may cost: the time to recover, the work that is done again, and the goodput."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.graph import duration_help, format_duration, parse_duration
from flowdist.record.accounts import goodput_of
from flowdist.record.journal import Record
from flowdist.sim.checks.points import Orders
from flowdist.sim.result import SimResult

RECOVERS, LOST_WORK, GOODPUT = "recovers within", "lost work", "goodput"


class Bounds(NamedTuple):
    """Bounds that a user sets on the cost of failures. None: not bounded."""

    recovers_within_ns: int | None = None  # the most, from the opening of each incident until its worlds step again
    lost_work_ns: int | None = None  # the most work that each worker of a world may have to do again
    goodput: float | None = None  # the least productive share of the time of tasks, 0 to 1

    def broken(self, result: SimResult) -> list[tuple[str, str]]:
        """Return for each incident, world or run that breaks a bound its name, such as `RECOVERS`, and a text."""
        return [*self._slow(result), *self._redone(result), *self._idle(result)]

    def _slow(self, result: SimResult) -> list[tuple[str, str]]:
        wrong: list[tuple[str, str]] = []
        most = self.recovers_within_ns
        if most is None:
            return wrong
        found = recoveries(result)
        for incident in result.job.incidents:
            took = found.get(incident.number, incident.took_ns)  # services do no steps: until they run again
            cut_short = result.job.outcome == "succeeded" and result.now <= incident.opened_ns + most
            if (took is not None and took <= most) or (took is None and cut_short):
                continue
            text = "never recovered" if took is None else f"recovered after {format_duration(took)}"
            wrong.append((RECOVERS, f"incident {incident.number} {text}, not within {format_duration(most)}"))
        return wrong

    def _redone(self, result: SimResult) -> list[tuple[str, str]]:
        most = self.lost_work_ns
        return [
            (LOST_WORK, f"{name} lost {format_duration(model.lost_ns)} of work, more than {format_duration(most)}")
            for name, model in result.models.items()
            if most is not None and model.lost_ns > most
        ]

    def _idle(self, result: SimResult) -> list[tuple[str, str]]:
        share = goodput_of(result.job.graph, result.spent) or 0.0
        if self.goodput is None or share >= self.goodput:
            return []
        return [(GOODPUT, f"goodput is {share:.3f}, less than {self.goodput}")]


def bounds_of(recovers_within: str | None = None, lost_work: str | None = None, goodput: float | None = None) -> Bounds:
    """Return the bounds that a user has written, two durations and a share from 0 to 1; None: not bounded.

    Raises FlowdistError if a text is no duration, or the goodput is not from 0 to 1.
    """
    if goodput is not None and not 0 <= goodput <= 1:
        raise FlowdistError(f"goodput {goodput}: a share of the time is from 0 to 1", help="write 0.9 for 90 %")
    return Bounds(_ns("recovers_within", recovers_within), _ns("lost_work", lost_work), goodput)


def _ns(name: str, text: str | None) -> int | None:
    try:
        return parse_duration(text) if text is not None else None
    except ValueError:
        raise FlowdistError(f"{name} {text}: no duration", help=duration_help(text)) from None


def recoveries(result: SimResult) -> dict[int, int | None]:
    """Return, by incident with worlds of tasks, the ns from its opening until all step again; None: one does not."""
    orders = Orders()
    for line in result.lines if result.job.incidents else ():
        if isinstance(line, Record):
            orders.hear(line)
    found: dict[int, int | None] = {}
    for incident in result.job.incidents:
        again = [
            orders.steps_again(name, model, incident.opened_ns)
            for name in incident.worlds
            if (model := result.models.get(name)) is not None
        ]
        if again:
            known = [at for at in again if at is not None]
            found[incident.number] = max(known) - incident.opened_ns if len(known) == len(again) else None
    return found
