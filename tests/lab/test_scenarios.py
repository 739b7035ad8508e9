"""Scenarios in a lab: which can be played, how their plans are shortened; and some of them, on real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.faults.files import parse_plan
from flowdist.graph import SECOND
from tests.lab.network import LabUnavailable
from tests.lab.scenarios import play
from tests.lab.stories import FOLDER, LEAD_NS, QUIET_NS, Decisions, moments, read_story, shifted, why_not, without_quiet

pytestmark = [pytest.mark.real, pytest.mark.lab]

MINUTE = 60 * SECOND
PLAYED = ("r4_", "r19_a_silent", "r20_", "r8_a_silent", "r14_a_drain_that")


def test_the_time_in_which_nothing_happens_is_cut_and_short_pauses_stay() -> None:
    plan = without_quiet(parse_plan(["node1@2m:lost/1m", "trainer/0@2m3s:exit=1", "node0@9m"], scales=["trainer=2@5m"]))
    lost, exits, kill = plan.faults
    assert lost.when.at_ns == LEAD_NS and exits.when.at_ns == LEAD_NS + 3 * SECOND
    assert lost.duration_ns == 3 * SECOND + QUIET_NS and plan.scales[0].at_ns == LEAD_NS + 3 * SECOND + 2 * QUIET_NS
    assert kill.when.at_ns == moments(plan)[-1] == LEAD_NS + 3 * SECOND + 3 * QUIET_NS


def test_faults_without_a_time_and_the_length_of_a_delay_are_not_changed() -> None:
    plan = without_quiet(parse_plan(["trainer/0@generation=trainer,2+5s", "node1@2m:delay=2s/5m"]))
    assert plan.faults[0] == parse_plan(["trainer/0@generation=trainer,2+5s"]).faults[0]
    assert plan.faults[1].duration_ns == 5 * MINUTE and plan.faults[1].when.at_ns == LEAD_NS


def test_a_plan_is_moved_as_a_whole() -> None:
    plan = shifted(parse_plan(["node1@2m/1m"], adds=["node9@4m"]), 5 * SECOND)
    assert moments(plan) == [2 * MINUTE + 5 * SECOND, 3 * MINUTE + 5 * SECOND, 4 * MINUTE + 5 * SECOND]
    assert plan.faults[0].duration_ns == MINUTE


def test_most_scenarios_of_hosts_and_links_can_be_played_and_the_others_say_why() -> None:
    reasons = {path.stem: why_not(read_story(path)) for path in FOLDER.glob("*.toml")}
    assert sum(not reason for reason in reasons.values()) >= 30
    assert "labels" in reasons["r14_a_drained_node_is_left_at_one_step_and_nothing_is_lost"]
    assert "serves no port" in reasons["r5_evaluator_crash_leaves_trainers_alone"]


def test_decisions_that_differ_are_named() -> None:
    one = Decisions("succeeded", [], {}, {"trainer": [4, 3]})
    assert one.differences(one) == []
    assert one.differences(one._replace(worlds={"trainer": [4, 4]})) == [
        "worlds: simulated {'trainer': [4, 3]}, in the lab {'trainer': [4, 4]}"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("beginning", PLAYED)
def test_a_scenario_leads_to_the_same_decisions_on_real_hosts(tmp_path: Path, beginning: str) -> None:
    (scenario,) = FOLDER.glob(f"{beginning}*.toml")
    try:
        outcome = play(tmp_path, scenario)
    except LabUnavailable as error:
        pytest.skip(f"no lab: {error}")
    assert not outcome.differs and not outcome.cannot, outcome
