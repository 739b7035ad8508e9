"""The state after an event: complete for programs, in brief for people."""

from __future__ import annotations

import dataclasses
import json
import re

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.record.journal import Header, Record
from flowdist.report.record.state import NOT_SHOWN, state_of, state_text
from flowdist.sim.simulation import SimResult
from tests.report.records import simulated

LOST_NODE = ("gang.py", "node2@3m/2m")


def after(result: SimResult, n: int) -> tuple[JobState, Record | None]:
    header, last = result.lines[0], None
    assert isinstance(header, Header)
    controller = Controller(header.graph, header.known_nodes)
    for line in result.lines:
        if isinstance(line, Record) and line.n <= n:
            controller.handle(line.event, line.t_ns)
            last = line
    return controller.state, last


def test_every_field_of_the_state_but_the_graph_is_shown() -> None:
    told = json.loads(json.dumps(state_of(*after(simulated(*LOST_NODE), 20))))
    names = {field.name for field in dataclasses.fields(JobState)} - NOT_SHOWN
    assert set(told["state"]) == names
    assert told["n"] == 20 and told["last"]["event"]["type"] == "NodeGone"
    assert told["state"]["replicas"]["trainer/0"]["phase"] == "stopping"
    assert told["state"]["nodes"]["node2"]["usable"] is False
    assert told["state"]["incidents"][0]["worlds"] == ["trainer"] and told["state"]["open"] == [1]
    assert "trainer/0 to stop" in told["waiting_for"]
    before = state_of(*after(simulated(*LOST_NODE), 19))["state"]
    assert before["open"] == [] and before["live_at"] == {"0": 4}
    free = told["state"]["nodes"]["node0"]["free"]
    assert free["mcpu"] == 0


def test_deadlines_are_shown_with_their_time() -> None:
    told = state_of(*after(simulated("gang.py"), 1))
    assert {"what": "admission", "name": "", "at_ns": 600_000_000_000} in told["state"]["due"]


def test_the_state_for_people_has_seats_and_what_is_awaited() -> None:
    text = state_text(*after(simulated(*LOST_NODE), 20))
    assert "#20 NodeGone node=node2" in text and "incident 1, stopping: node2 lost" in text
    assert re.search(r"trainer/0 +stopping +1 +node0 +- +120", text)
    assert re.search(r"node2 +no +- ", text)
    assert "waiting for\n" in text and "  trainer/0 to stop" in text
    assert state_text(*after(simulated(*LOST_NODE), 0)).startswith("before the first event")
