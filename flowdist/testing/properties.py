"""The properties of the control core: what is drawn, how it is judged, how large it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from flowdist.testing.budgets import beatings, judge_beating
from flowdist.testing.conversation import judge_talk, talks
from flowdist.testing.history import Complaint
from flowdist.testing.mutations import Property
from flowdist.testing.network import judge_network, networks
from flowdist.testing.runs import judge_restart, judge_run, quiet_runs, restarts, runs


class Checked(NamedTuple):
    """A property. `size` counts what happens in a case: moves, faults, blows. `examples` is how many are tried."""

    cases: Callable[[], st.SearchStrategy[Any]]
    judge: Callable[[Any], list[Complaint]]
    size: Callable[[Any], int]
    examples: int


PROPERTIES: dict[Property, Checked] = {
    "conversation": Checked(talks, judge_talk, lambda case: len(case.moves), 2000),
    "run": Checked(runs, judge_run, lambda case: sum(map(len, case.plan)), 400),
    "quiet": Checked(quiet_runs, judge_run, lambda case: 0, 600),
    "restart": Checked(restarts, judge_restart, lambda case: 1, 200),
    "network": Checked(networks, judge_network, lambda case: sum(map(len, case.plan)) + len(case.changes), 600),
    "beating": Checked(beatings, judge_beating, lambda case: len(case.blows), 1000),
}
