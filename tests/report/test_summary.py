"""The summary of a run fits a terminal, however many replicas and buckets there are."""

from __future__ import annotations

import re
from typing import Any

from flowdist import Restart, Topology, Workload
from flowdist.record.status import RecentDecisions, status_of
from flowdist.report.live.status import status_text
from flowdist.report.record.state import state_text
from flowdist.report.record.summary import WIDTH, summary_of, summary_text
from flowdist.sim.result import SimResult
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of


def summary(restarted: list[str], buckets: list[str], roles: tuple[str, ...] = ("trainer",)) -> dict[str, Any]:
    role = {"outcome": None, "generations": 1, "restarts": 0, "charged": 0, "budget": None, "step": 1}
    incident = {"number": 1, "t_s": 1.0, "kind": "exit", "root": "x", "reason": "x", "result": "recovered"}
    incident |= {"restarted": restarted, "stayed_in_place": [], "charged_to": None, "took_s": 1.0, "moved": {}}
    incident |= {"first_step_s": None}
    return {
        "outcome": "succeeded",
        "reason": "",
        "lasted_s": 1.0,
        "roles": dict.fromkeys(roles, role),
        "time_s": {name: dict.fromkeys(buckets, 1.0) for name in roles},
        "incidents": [incident],
        "causes": {"exit": 1},
    }


def simulated(fault: str) -> SimResult:
    """A simulation of three trainers on four nodes, with one fault."""
    t = Topology("job", nodes=4)
    load = Workload(steps=3600, step_time="1s", checkpoint_every="1m")
    t.role("trainer", "true", replicas=3, cpu=5, restart=Restart(max_restarts=3), workload=load)
    return simulate(graph_of(t), fault)


def restarted(*names: str) -> str:
    [line] = [line for line in summary_text(summary([*names], [])).splitlines() if line.startswith("     restarted ")]
    return line.removeprefix("     restarted ").partition(";")[0]


def test_replicas_in_a_row_are_named_by_the_first_and_the_last() -> None:
    assert restarted(*(f"t/{n}" for n in range(64))) == "t/0 to t/63"
    assert restarted("ps/1", "t/0", "t/1", "t/2", "t/4", "t/5", "t/6", "t/7") == "ps/1, t/0, t/1, t/2, t/4 to t/7"
    assert restarted("a/0", "a/1", "b/2", "b/3") == "a/0, a/1, b/2, b/3"


def test_an_incident_says_when_it_had_re_formed_and_when_it_stepped_again() -> None:
    found = summary(["t/0"], [])
    (incident,) = found["incidents"]
    incident |= {"result": "re-formed", "took_s": 0.05}
    assert "     restarted t/0; re-formed after 50ms, not counted\n" in summary_text(found)
    incident |= {"result": "recovered", "first_step_s": 0.29}
    assert "     restarted t/0; recovered: re-formed after 50ms, first step after 290ms, not counted\n" in summary_text(
        found
    )


def test_an_incident_says_to_which_node_a_replica_has_moved() -> None:
    found = summary_of(simulated("node1@5m").job, [])
    (incident,) = found["incidents"]
    ((replica, node),) = incident["moved"].items()
    assert replica in incident["restarted"] and node != "node1"
    assert f"; {replica} moved to {node}; " in summary_text(found)
    (stays,) = summary_of(simulated("trainer/0@5m").job, [])["incidents"]
    assert stays["restarted"] and stays["moved"] == {}


def test_the_lost_work_of_a_real_run_is_shown_where_its_steps_are_known() -> None:
    found = summary(["t/0"], ["productive", "lost work"]) | {"tasks": ["trainer"], "lost_work_s": {"trainer": 1.0}}
    assert "  charged  last step  lost work\n" in summary_text(found) and "1          1s\n" in summary_text(found)
    for unsaid in ("progress", "step numbers"):
        assert "last step  lost" not in summary_text(found | {"not_reported": {"trainer": [unsaid]}})


def test_an_incident_that_restarted_nothing_says_what_it_led_to_alone() -> None:
    found = summary([], [])
    found["incidents"][0]["result"] = "waits for room: actor/1"
    assert "     waits for room: actor/1; over after 1s, not counted\n" in summary_text(found)


def test_a_table_that_is_too_wide_stands_on_its_side() -> None:
    buckets = ["productive", "start-up", "restore", "checkpoint", "stalled", "lost work", "detection", "re-formation"]
    text = summary_text(summary([], buckets))
    assert "  role          trainer\n  productive    12.5 %\n" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "  role     productive  start-up\n  trainer  50.0 %      50.0 %\n" in summary_text(summary([], buckets[:2]))


def test_many_roles_stay_lines_of_their_own() -> None:
    roles = tuple(f"a-role-with-a-long-name-{n}" for n in range(12))
    buckets = ["productive", "start-up", "restore", "checkpoint", "stalled", "lost work", "detection", "re-formation"]
    assert f"\n  {roles[0]}   12.5 %" in summary_text(summary([], buckets, roles))


def test_no_listing_shows_more_charges_than_the_budget_allows():
    t = Topology("window", nodes=1)
    t.role("trainer", "true", restart=Restart(max_restarts=1, within="1m"), workload=Workload(steps=600))
    result = simulate(graph_of(t), "trainer/0@1m", "trainer/0@3m", "trainer/0@5m", until="5m30s")
    texts = [
        summary_text(summary_of(result.job, result.lines)),
        status_text(status_of(result.job, RecentDecisions())),
        state_text(result.job, None),
    ]
    assert len(result.job.roles["trainer"].charges) == 3
    assert ["1 of 1" in text for text in texts[:2]] == [True, True]
    assert re.search(r"trainer +- +1 +1 +1\n", texts[2])
