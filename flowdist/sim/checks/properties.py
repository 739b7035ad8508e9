"""Properties that a user demands of a run: always, eventually, and sometimes in a campaign.

Their checks, functions of the state of the job, are called after every event, since the state only changes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowdist.control.job.state import JobState
from flowdist.control.membership.waiting import waiting_for
from flowdist.errors import FlowdistError
from flowdist.graph import format_duration
from flowdist.sim.engine.queue import Violation

Check = Callable[[JobState], object]


class Always(NamedTuple):
    """A property that holds after every event.

    Where it does not hold, the check returns False or raises AssertionError. Any other value, None too, means that it
    holds.
    """

    name: str
    check: Check


class Eventually(NamedTuple):
    """A property that, whenever it is not true, becomes true within `within_ns`, and that is true when the job ends.

    The check returns a true value where it holds. An AssertionError means that it does not.
    """

    name: str
    check: Check
    within_ns: int


class Sometimes(NamedTuple):
    """A property that is true at some time in some run of a campaign, as its check says by a true value."""

    name: str
    check: Check


class Properties(NamedTuple):
    """All properties of one user for one topology. Names are unique."""

    always: tuple[Always, ...] = ()
    eventually: tuple[Eventually, ...] = ()
    sometimes: tuple[Sometimes, ...] = ()

    def and_also(self, others: Properties) -> Properties:
        """Return the properties of both, each once."""
        return Properties(
            tuple(dict.fromkeys([*self.always, *others.always])),
            tuple(dict.fromkeys([*self.eventually, *others.eventually])),
            tuple(dict.fromkeys([*self.sometimes, *others.sometimes])),
        )


class Watching:
    """Checker of the user's properties in one run. `seen` gets the time in ns at which each `sometimes` became true."""

    def __init__(self, properties: Properties, seen: dict[str, int]) -> None:
        self.properties, self._seen = properties, seen
        self._since: dict[Eventually, int] = dict.fromkeys(properties.eventually, 0)  # since when each does not hold

    @property
    def is_awake(self) -> bool:
        """Return whether some check still has to be called after every event; not for `sometimes` that was true."""
        unseen = any(point.name not in self._seen for point in self.properties.sometimes)
        return bool(self.properties.always or self.properties.eventually) or unseen

    def hear(self, job: JobState, now: int) -> None:
        """Call the checks after an event at `now` (ns).

        Violation for an `always` or `eventually` property that does not hold, FlowdistError if a check raised anything
        but AssertionError.
        """
        for rule in self.properties.always:
            holds, why = _ask(rule.name, rule.check, job)
            if not holds and (why or holds is False):
                text = (
                    f"{rule.name} at {format_duration(now)}: {why}"
                    if why
                    else f"{rule.name} does not hold at {format_duration(now)}"
                )
                raise Violation("always", text)
        for promise in self.properties.eventually:
            self._wait_for(promise, job, now)
        for point in self.properties.sometimes:
            if point.name not in self._seen and _ask(point.name, point.check, job)[0]:
                self._seen[point.name] = now

    def close(self, job: JobState, now: int) -> None:
        """Check the `eventually` properties at the end of a run; Violation for one that has no time left.

        All have to hold if the job has ended. If only the clock was stopped, a property may still have time left.
        """
        for promise, since in self._since.items():
            if job.outcome is not None or now > since + promise.within_ns:
                raise _broken(promise, since, job, now)

    def _wait_for(self, promise: Eventually, job: JobState, now: int) -> None:
        since = self._since.get(promise)
        if since is not None and now > since + promise.within_ns:
            raise _broken(promise, since, job, now)  # late, even if it is true now: nothing has changed before
        if _ask(promise.name, promise.check, job)[0]:
            self._since.pop(promise, None)
        elif since is None:
            self._since[promise] = now


def _broken(promise: Eventually, since: int, job: JobState, now: int) -> Violation:
    text = f"{promise.name} has not held since {format_duration(since)}"
    if job.outcome is not None and now <= since + promise.within_ns:
        return Violation("eventually", f"{text}, and the job has {job.outcome} at {format_duration(now)}")
    within = format_duration(promise.within_ns)
    what = "; ".join(waiting_for(job)) or f"nothing: the job has {job.outcome}"
    return Violation(
        "eventually", f"{text}, for more than {within} (now it is {format_duration(now)}); waiting for {what}"
    )


def _ask(name: str, check: Check, job: JobState) -> tuple[object, str]:
    """Return what a check returns, and ""; False and why for an AssertionError; FlowdistError for other errors."""
    try:
        return check(job), ""
    except AssertionError as error:
        return False, str(error) or "an assertion in it does not hold"
    except Exception as error:
        code = getattr(check, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        message = f"property {name}{where} raises {type(error).__name__}: {error}"
        raise FlowdistError(
            message, help="it is given the state of the job: see docs/reference/properties.md"
        ) from error


def properties_of(
    always: Sequence[Always | Check] = (),
    eventually: Sequence[Eventually] = (),
    sometimes: Sequence[Sometimes] | Mapping[str, Check] = (),
) -> Properties:
    """Return the properties that a test has passed; mere checks become properties named after the function."""
    points = [Sometimes(*item) for item in sometimes.items()] if isinstance(sometimes, Mapping) else sometimes
    rules = tuple(rule if isinstance(rule, Always) else Always(name_of(rule), rule) for rule in always)
    return Properties(rules, tuple(eventually), tuple(points))


def name_of(check: Check) -> str:
    """Return the name of the function; of a check without a name, its `repr`."""
    return getattr(check, "__name__", repr(check))
