"""What is asked by its very type is what isinstance would say, of every type that there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import effects, events, messages


@pytest.mark.parametrize(
    ("asked", "group", "kinds"),
    [
        (effects.is_order, effects.Order, effects.Effect),
        (events.is_of_attempt, events.AttemptEvent, events.Event),
        (messages.is_to_agent, messages.ToAgent, io.AgentInput),
        (io.is_worker_input, io.WorkerInput, io.AgentInput),
    ],
)
def test_a_kind_is_one_of_its_group_or_not(asked: Callable[[Any], bool], group: Any, kinds: Any) -> None:
    for kind in get_args(kinds):
        one = kind(**dict.fromkeys(kind.__struct_fields__))  # what is in them nobody asks
        assert asked(one) == isinstance(one, group) == (kind in get_args(group))
