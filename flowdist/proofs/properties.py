"""The properties of the control core: what is drawn, how it is judged, how large it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from flowdist.proofs.budgets import beatings, judge_beating
from flowdist.proofs.conversation import judge_talk, talks
from flowdist.proofs.mutations import Property
from flowdist.proofs.network import judge_network, networks
from flowdist.proofs.runs import judge_restart, judge_run, quiet_runs, restarts, runs
from flowdist.record.restart_rules import Complaint


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
