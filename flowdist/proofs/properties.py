"""Table of the properties of the control core: how cases are drawn, judged and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from flowdist.proofs.budgets import judge_repeated_failures, repeated_failures
from flowdist.proofs.conversation import conversations, judge_conversation
from flowdist.proofs.mutations import Property
from flowdist.proofs.network import judge_network, networks
from flowdist.proofs.runs import judge_restart, judge_run, quiet_runs, restarts, runs
from flowdist.record.restart_rules import Complaint


class Checked(NamedTuple):
    """One property. `size` counts the moves, faults or hits of a case; `examples` is how many cases are tried."""

    cases: Callable[[], st.SearchStrategy[Any]]
    judge: Callable[[Any], list[Complaint]]
    size: Callable[[Any], int]
    examples: int


PROPERTIES: dict[Property, Checked] = {
    "conversation": Checked(conversations, judge_conversation, lambda case: len(case.moves), 2000),
    "run": Checked(runs, judge_run, lambda case: sum(map(len, case.plan)), 400),
    "quiet": Checked(quiet_runs, judge_run, lambda case: 0, 600),
    "restart": Checked(restarts, judge_restart, lambda case: 1, 200),
    "network": Checked(networks, judge_network, lambda case: sum(map(len, case.plan)) + len(case.changes), 600),
    "repeated": Checked(repeated_failures, judge_repeated_failures, lambda case: len(case.hits), 1000),
}
