"""Causes: what happened to a job from outside, each by itself, so that a plan can be played without it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Fault, NodeOrder, Plan, Scale

FIELDS = ("faults", "scales", "adds", "drains")


class Cause(NamedTuple):
    """One fault, order of the operator, or node that joins."""

    flag: str  # option of the command line that causes it: `--fail`, `--scale`, `--add` or `--drain`
    text: str  # text of that option, such as `node3@12m/2m`
    at_ns: int | None  # when it happens; None: it waits for an event or happens again and again
    is_harm: bool  # it takes something away from the job: every fault and drain; a job may need the others
    what: Fault | Scale | NodeOrder  # the item of the plan

    @property
    def target(self) -> str:
        """Node, role, replica, worker, label, `all` or `controller` that is hit."""
        if isinstance(self.what, NodeOrder):
            return self.what.node
        return self.what.role if isinstance(self.what, Scale) else self.what.target


def causes_of(plan: Plan) -> list[Cause]:
    """Return the causes of a plan, in the order of their times; those without a time come last. Rates have none."""
    found = dict.fromkeys(cause for _, cause in _items(plan))
    return sorted(found, key=lambda cause: (cause.at_ns is None, cause.at_ns or 0))


def without(plan: Plan, removed: Collection[Cause]) -> Plan:
    """Return the plan without some of its causes, and without what happens to nodes that only these add."""
    gone = {(cause.flag, cause.text) for cause in removed}
    kept: dict[str, list[Any]] = {field: [] for field in FIELDS}
    for field, cause in _items(plan):
        if (cause.flag, cause.text) not in gone:
            kept[field].append(cause.what)
    left = plan._replace(**{field: tuple(items) for field, items in kept.items()})
    strays = set(plan.new_nodes) - set(left.new_nodes)
    if not strays:
        return left
    faults = (fault for fault in left.faults if fault.target not in strays and not strays.intersection(fault.others))
    return left._replace(faults=tuple(faults), drains=tuple(drain for drain in left.drains if drain.node not in strays))


def named(causes: Iterable[Cause], texts: Iterable[str]) -> list[Cause]:
    """Return the causes with these texts, as `flowdist why` prints them.

    Raises:
        FlowdistError: There is no cause with one of the texts; the message names those that there are.
    """
    causes, texts = list(causes), list(texts)
    missing = [text for text in texts if not any(cause.text == text for cause in causes)]
    if missing:
        known = ", ".join(dict.fromkeys(cause.text for cause in causes))
        message = "\n".join(f"--without {text}: the run had no such fault" for text in missing)
        raise FlowdistError(message, help=f"name one of {known}" if known else "nothing happened to this run")
    return [cause for cause in causes if cause.text in texts]


def _items(plan: Plan) -> Iterator[tuple[str, Cause]]:
    """Yield each item of a plan as a cause, with the field of the plan that has it."""
    for field in FIELDS:
        for item in getattr(plan, field):
            ((flag, text),) = Plan()._replace(**{field: (item,)}).options
            is_harm = flag in ("--fail", "--drain") and getattr(item, "kind", "") not in ("scale", "add")
            yield field, Cause(flag, text, _at_ns(item), is_harm, item)


def _at_ns(item: Fault | Scale | NodeOrder) -> int | None:
    if not isinstance(item, Fault):
        return item.at_ns
    return None if item.when.at_ns is None else item.when.at_ns + item.offset_ns
