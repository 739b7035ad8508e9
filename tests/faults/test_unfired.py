"""Why a fault of a real run never fired."""

from __future__ import annotations

import pytest

from flowdist.faults.grammar import parse_fault
from flowdist.faults.milestones import why_it_never_fired
from flowdist.graph import SECOND
from tests.control.harness import Talk, graph, role


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("trainer/0@5m", "the clock stopped after 10s"),
        ("trainer/0@start=trainer,2", "trainer had 1 generation"),
        ("trainer/0@start=trainer,1:torn-checkpoint", "there was no checkpoint of trainer/0 then"),
    ],
)
def test_the_first_reason_is_told(fault: str, why: str) -> None:
    talk = Talk(graph(role("trainer")))
    talk.join("node0")
    assert why_it_never_fired(parse_fault(fault), talk.job, 10 * SECOND) == why
