"""The state after an event, complete for programs; the status log, a line an event."""

from __future__ import annotations

import dataclasses
import json
import re

from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.record.journal import Header, Record
from flowdist.report.record.state import NOT_SHOWN, state_of, state_text
from flowdist.report.record.statuslog import _KINDS, COLUMNS_MAX, LEGEND, log_heading, log_line
from flowdist.sim.simulation import SimResult
from tests.report.records import crash_loop, simulated

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


def log(result: SimResult) -> list[str]:
    header = result.lines[0]
    assert isinstance(header, Header)
    controller = Controller(header.graph, header.known_nodes)
    texts = [log_heading(controller.state)]
    for line in result.lines:
        if isinstance(line, Record):
            controller.handle(line.event, line.t_ns)
        texts += log_line(controller.state, line)
    return texts


def test_each_event_and_each_fault_is_one_line_with_a_mark() -> None:
    result = simulated(*LOST_NODE)
    lines = log(result)
    assert len(lines) == len(result.lines) - 1  # the heading stands for the header, and the accounts have no line
    fault = next(i for i, line in enumerate(lines) if " f " in line and "hits node2" in line)
    assert " 20 -IX" in lines[fault + 1] and " xx-x " in lines[fault + 1]
    assert any(" oS " in line and "ssss" in line and "4/2..4" in line for line in lines)
    assert any(" ]   trainer " in line and "     120      120 " in line for line in lines)
    assert sum(" $" in line for line in lines) >= 4 and lines[-1].rstrip().split()[2].startswith("$")


def test_a_checkpoint_that_came_to_nothing_is_a_line_with_its_reason() -> None:
    [line] = [line for line in log(simulated("gang.py", "trainer@1m:disk-full/1m")) if " )   trainer" in line]
    assert line.startswith("  0:01:06.007")
    assert line.endswith("the checkpoint of trainer at step 60 is not saved: the disk of trainer is full")


def test_the_columns_stand_below_their_names() -> None:
    lines = log(simulated("ps.py", "ps/1@4m", "trainer@1m:disk-full/2m"))
    at = lines[0].index("what")
    assert lines[0].index("replicas") < at
    assert all(line[at - 2 : at] == "  " for line in lines[1:])


def test_many_replicas_are_counted() -> None:
    header, lines = crash_loop(COLUMNS_MAX + 1, 1)
    controller = Controller(header.graph, header.known_nodes)
    for line in lines:
        assert isinstance(line, Record)
        controller.handle(line.event, line.t_ns)
    assert isinstance(lines[-1], Record)
    (text,) = log_line(controller.state, lines[-1])
    assert f"trainer:{COLUMNS_MAX + 1}" in text


def test_the_legend_explains_every_mark() -> None:
    happened = LEGEND.partition("followed:")[0].removeprefix("happened:").replace("\n", "  ").split("  ")
    explained = {text.strip().split(" ")[0] for text in happened if text.strip()}
    assert explained == {*_KINDS, "f", "!", "$", "]", "}", ")", ","}
