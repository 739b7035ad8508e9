"""The timeline of a record, as a page and in the trace format of Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.protocol.effects import Decided
from flowdist.control.protocol.events import CancelRequested, CheckpointOffered
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.scenario import load_scenario
from flowdist.graph import MINUTE, MS, SECOND
from flowdist.record.journal import Header, Record, record
from flowdist.record.replay import Replay
from flowdist.report.record.page import HOW, page_data, summary_line, timeline_page
from flowdist.report.record.perfetto import perfetto_events, perfetto_json
from flowdist.report.record.summary import rounded
from flowdist.report.record.timeline import Attempt, Timeline, timeline_of
from flowdist.sim.simulation import SimResult
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of
from tests.control.harness import Talk, graph, restart, role
from tests.record.sheets import fail, save, step
from tests.report.browser import Browser, details, find_browser, needs_browser, opened, place_of
from tests.report.records import crash_loop, simulated

SCENARIOS = Path(__file__).parents[2] / "scenarios"
LOST_NODE = ("gang.py", "node2@3m/2m")


def of(result: SimResult) -> Timeline:
    header = result.lines[0]
    assert isinstance(header, Header)
    return timeline_of(header, result.lines[1:])


def attempt(timeline: Timeline, name: str, number: int) -> Attempt:
    return next(a for a in timeline.attempts if str(a.replica) == name and a.number == number)


def test_an_attempt_has_its_phases_its_end_and_the_decision_that_ended_it() -> None:
    timeline = of(simulated(*LOST_NODE))
    lost, stopped, last = (attempt(timeline, n, i) for n, i in (("trainer/2", 1), ("trainer/0", 1), ("trainer/0", 3)))
    assert (lost.how, lost.node, lost.stopping_ns, lost.ended_ns) == ("lost", "node2", None, 180 * SECOND + 10 * MS)
    assert [phase for phase, _, _ in stopped.phases(0)] == ["starting", "running", "stopping"]
    assert (stopped.how, last.how) == ("stopped", "succeeded")
    reasons = {decision.n: decision.reason for decision in timeline.decisions}
    assert lost.because == stopped.because and "node2 lost (killed)" in reasons[lost.because or 0]
    assert [(g.number, g.members) for g in timeline.generations] == [(1, 4), (2, 3), (3, 4)]
    assert timeline.generations[0].to_ns == timeline.generations[1].from_ns


def test_work_since_the_last_accepted_checkpoint_is_lost() -> None:
    timeline = of(simulated(*LOST_NODE))
    saved = [c.t_ns for c in timeline.checkpoints if c.t_ns < 180 * SECOND][-1]
    assert attempt(timeline, "trainer/1", 1).lost_from_ns == pytest.approx(saved, abs=SECOND), "whole steps are lost"
    assert attempt(timeline, "trainer/1", 3).lost_from_ns is None  # it has succeeded
    assert attempt(timeline, "trainer/2", 2).lost_from_ns is None


def test_without_a_checkpoint_in_its_generation_all_steps_are_lost() -> None:
    timeline = of(simulated("gang.py", "node2@3m", "trainer/0@generation=trainer,2+20s"))
    second = attempt(timeline, "trainer/0", 2)
    assert second.how == "failed" and second.running_ns is not None and second.lost_from_ns is not None
    assert 0 < second.lost_from_ns - second.running_ns < 6 * SECOND, "its start-up is no work"


def test_what_leaves_in_order_loses_nothing() -> None:
    timeline = of(simulated("gang.py", "node2@3m:preempt=1m"))
    left = attempt(timeline, "trainer/2", 1)
    assert left.left_at is not None and left.lost_from_ns is None


def test_what_leaves_in_order_and_could_not_save_loses_what_it_did() -> None:
    saved, full = (of(simulated("gang.py", "node1@90s:drain", *more)) for more in ((), ("trainer@80s:disk-full/1m",)))
    [line] = full.unsaved
    for name in ("trainer/0", "trainer/1"):
        assert attempt(saved, name, 1).left_at == line.step and attempt(saved, name, 1).lost_from_ns is None
        left = attempt(full, name, 1)
        assert left.left_at is None and left.lost_from_ns == pytest.approx(full.checkpoints[0].t_ns, abs=SECOND)


def test_services_and_roles_without_reports_have_no_known_lost_work() -> None:
    timeline = of(simulated("ps.py", "ps/1@4m"))
    assert attempt(timeline, "ps/1", 1).how == "failed" and attempt(timeline, "ps/1", 1).lost_from_ns is None
    header, lines = crash_loop(2, 2)
    assert any(a.lost_from_ns is not None for a in timeline_of(header, lines).attempts)
    silent = [line for line in lines if not (isinstance(line, Record) and isinstance(line.event, CheckpointOffered))]
    seen = timeline_of(header, silent)
    assert seen.differs_at is None and sum(a.how == "failed" for a in seen.attempts) == 2
    assert all(a.lost_from_ns is None for a in seen.attempts)


def test_page_and_report_have_one_figure_of_lost_work() -> None:
    """They once had 23.27 s and 9.4 s for one run, and work of an evaluator that saves nothing was drawn as lost."""
    talk = Talk(graph(role("trainer", max_replicas=2, restart=restart()), role("aside", restart=restart())))
    talk.join("node0")
    for second in range(1, 20):
        step(talk, second, second)
        step(talk, second, second, "aside/0")
        if second == 10:
            save(talk, second, second)
    fail(talk, 20, "trainer/1")
    step(talk, 25, 6)  # from an older checkpoint than the latest
    step(talk, 26, 7)
    fail(talk, 27, "aside/0")
    step(talk, 30, 15, "aside/0")  # it knows by itself where it was
    step(talk, 31, 16, "aside/0")
    talk.tell(CancelRequested())
    header = Header(talk.graph, ("node0",))
    replay = Replay(header)
    lines = [replay.decide(event, at) for event, at in talk.record]
    timeline, lost = timeline_of(header, lines), replay.sheet.lost()
    assert lost == {"trainer": 15 * SECOND, "aside": pytest.approx(13 * SECOND)}
    assert timeline.lost_ns == sum(lost.values())
    assert f"{rounded(28)} of work lost" in summary_line(timeline)
    for name, ns in (("trainer/0", lost["trainer"]), ("trainer/1", lost["trainer"]), ("aside/0", lost["aside"])):
        drawn = [a for a in timeline.attempts if str(a.replica) == name and a.lost_from_ns is not None]
        assert sum((a.lost_to_ns or 0) - (a.lost_from_ns or 0) for a in drawn if not a.is_unsaved) == ns, name
    unsaved = [a for a in timeline.attempts if a.is_unsaved]
    assert {str(a.replica) for a in unsaved} == {"trainer/0", "trainer/1"} and timeline.unsaved_ns > 0


def test_a_node_is_away_between_its_presences() -> None:
    timeline = of(simulated(*LOST_NODE))
    mine = [(p.from_ns, p.to_ns) for p in timeline.presences if p.node == "node2"]
    assert mine[0][1] == 180 * SECOND + 10 * MS and mine[1][0] > 299 * SECOND and mine[1][1] is None


def test_the_timeline_ends_at_the_first_event_that_does_not_replay() -> None:
    result = simulated(*LOST_NODE)
    lines = list(result.lines)
    at = next(i for i, line in enumerate(lines) if isinstance(line, Record) and line.n == 20)
    lines[at] = msgspec.structs.replace(lines[at], effects=())  # type: ignore[type-var]
    header = lines[0]
    assert isinstance(header, Header)
    timeline = timeline_of(header, lines[1:])
    assert timeline.differs_at == 20 and timeline.end_ns == 180 * SECOND + 10 * MS
    assert "From event 20 on" in timeline_page(timeline)


def test_other_words_of_an_earlier_version_are_no_other_decisions() -> None:
    result = simulated(*LOST_NODE)
    header, *lines = result.lines
    assert isinstance(header, Header)
    for at, line in enumerate(lines):
        if isinstance(line, Record):
            effects = tuple(
                msgspec.structs.replace(e, text=f"once: {e.text}") if isinstance(e, Decided) else e
                for e in line.effects
            )
            lines[at] = record(line.n, line.t_ns, line.event, effects)
    timeline = timeline_of(header, lines)
    assert timeline.differs_at is None and len(timeline.attempts) == len(timeline_of(header, result.lines[1:]).attempts)
    assert any(decision.reason.startswith("once: ") for decision in timeline.decisions)


def scenario_results() -> Iterator[tuple[str, SimResult]]:
    for path in sorted(SCENARIOS.glob("r1[0-9]_*.toml"))[::3]:
        scenario = load_scenario(path)
        if not (scenario.scale or scenario.add or scenario.drain or scenario.params or scenario.set or scenario.nodes):
            yield path.stem, simulated(Path(scenario.topology).name, *scenario.faults)


def phases_of(result: SimResult) -> dict[tuple[ReplicaId, int], dict[str, int]]:
    """Return when each phase of each attempt began, found by a look at every replica after every event."""
    header = result.lines[0]
    assert isinstance(header, Header)
    replay = Replay(header)
    found: dict[tuple[ReplicaId, int], dict[str, int]] = {}
    alive: dict[ReplicaId, int] = {}
    for line in result.lines[1:]:
        if not isinstance(line, Record):
            continue
        replay.hear(line)
        for id, replica in replay.job.replicas.items():
            if id in alive and (alive[id] != replica.attempt or not replica.is_live):
                found[id, alive.pop(id)]["ended"] = line.t_ns
            if replica.is_live:
                alive[id] = replica.attempt
                found.setdefault((id, replica.attempt), {}).setdefault(replica.phase, line.t_ns)
    return found


def test_a_look_at_what_an_event_names_misses_no_change_of_a_phase() -> None:
    results = [("a lost node", simulated(*LOST_NODE)), *scenario_results()]
    assert len(results) >= 4
    for name, result in results:
        told = {}
        for a in of(result).attempts:
            begun = {"starting": a.started_ns, "running": a.running_ns, "ready": a.ready_ns}
            ends = {"stopping": a.stopping_ns, "ended": a.ended_ns}
            told[a.replica, a.number] = {phase: ns for phase, ns in (begun | ends).items() if ns is not None}
        assert told == phases_of(result), name


def test_every_attempt_that_was_ordered_is_there_once() -> None:
    header, lines = crash_loop(8, 20)
    timeline = timeline_of(header, lines)
    assert len(timeline.attempts) == 8 * 21 and len(timeline.generations) == 21
    assert len({(a.replica, a.number) for a in timeline.attempts}) == len(timeline.attempts)
    assert len(timeline.job.incidents) == 20 == len(timeline.opened_by)


class _Page(HTMLParser):
    """Parser that keeps the data of the page, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts: list[str] = []
        self.data = ""
        self._in_data = False
        self.labels: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [f"{tag} {name}" for name in given if name in ("src", "href", "srcset", "poster", "action")]
        self.labels += [given["aria-label"] or ""] if "aria-label" in given else []
        if tag == "script":
            self.scripts.append(given.get("type") or "script")
            self._in_data = given.get("type") == "application/json"

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._in_data else ""


def read(page: str) -> _Page:
    parser = _Page()
    parser.feed(page)
    return parser


def test_the_page_fetches_nothing_and_holds_all_of_its_data() -> None:
    timeline = of(simulated(*LOST_NODE))
    page = timeline_page(timeline)
    parsed = read(page)
    assert parsed.fetched == [] and parsed.scripts == ["application/json", "script"] and "Timeline" in parsed.labels
    assert "default-src 'none'" in page and "@import" not in page and "url(" not in page and "@@" not in page
    assert json.loads(parsed.data) == json.loads(msgspec.json.encode(page_data(timeline)))
    assert timeline_page(of(simulated(*LOST_NODE))) == page


def test_the_data_of_the_page_says_when_each_attempt_began_and_how_it_ended() -> None:
    data = page_data(of(simulated(*LOST_NODE)))
    world, number, begun, ended, members, decision, attempts = data["generations"][0]
    assert (data["worlds"][world], number, members) == (["trainer", 1], 1, 4) and ended > begun
    lost = attempts[2]
    assert HOW[lost[10]] == "lost" and begun + lost[8] == 180_010_000 and lost[7] == -1
    assert "node2 lost (" in data["decisions"][lost[11]][3]
    assert "generation 1 forms" in data["decisions"][decision][3]
    assert data["faults"] == [[180_000_000, "node2@3m/2m", "node2", 2]]


def test_the_words_of_a_user_cannot_end_the_script() -> None:
    page = timeline_page(timeline_of(*crash_loop(2, 2)))
    assert "</script><b>" not in page
    assert "</script><b>ValueError</b>" in read(page).data.replace("\\u003c", "<")


def test_the_summary_counts_what_there_is() -> None:
    assert summary_line(of(simulated(*LOST_NODE))).startswith(
        "succeeded after 12m11s: every primary task has succeeded"
    )
    assert "2 incidents, 1 injected fault, 11 attempts" in summary_line(of(simulated(*LOST_NODE)))
    assert summary_line(timeline_of(*crash_loop(1, 1))).startswith(
        "unfinished after 1m10s; 1 incident, 0 injected faults"
    )


def test_a_checkpoint_that_came_to_nothing_is_on_the_page_and_in_perfetto() -> None:
    timeline = of(simulated("gang.py", "trainer@1m:disk-full/1m"))
    assert page_data(timeline)["unsaved"] == [[0, 66_007_200, 60, "the disk of trainer is full"]]
    [event] = [event for event in perfetto_events(timeline) if event.get("cat") == "unsaved"]
    assert (event["name"], event["ts"], event["pid"]) == ("step 60 is not saved", 66_007_200, 0)


def test_an_incident_has_the_time_of_the_first_step_on_the_page_and_in_perfetto() -> None:
    timeline = of(simulated("gang.py", "trainer/1@3m"))
    (incident,) = timeline.job.incidents
    assert incident.result == "recovered" and incident.stepped_ns is not None and incident.first_step_ns is not None
    assert page_data(timeline)["incidents"][0][-1] == incident.stepped_ns // 1000
    begins = [e["args"] for e in perfetto_events(timeline) if e.get("cat") == "incident" and e["ph"] == "b"]
    assert [args["first_step_s"] for args in begins] == [incident.first_step_ns / 1e9]


def in_memory(*faults: str, until: str | None = None) -> Timeline:
    """Survivors keep in memory what they have done, and nothing is saved in the first ten minutes."""
    t = Topology("kept", nodes=3 * [Node(cpu=1)])
    load = Workload(steps=300, startup="5s", rejoin_time="1s", checkpoint_every="10m")
    t.role("trainer", "true", replicas="2:3", restart=Restart(max_restarts=5), workload=load)
    return of(simulate(graph_of(t), *faults, until=until))


def test_work_of_earlier_attempts_that_is_lost_with_a_later_one_is_not_drawn_before_that_began() -> None:
    timeline = in_memory("trainer/1@60s", until="90s")
    last = attempt(timeline, "trainer/0", 2)
    assert timeline.unsaved_ns and (last.lost_from_ns, last.lost_to_ns) == (last.started_ns, 90 * SECOND)
    begins = {event["tid"]: event["ts"] for event in perfetto_events(timeline) if event.get("name") == "attempt 2"}
    unsaved = [event for event in perfetto_events(timeline) if event.get("cat") == "unsaved at the end"]
    assert len(unsaved) == 6 and all(event["ts"] >= begins[event["tid"]] for event in unsaved)


def test_an_attempt_that_was_left_in_place_and_never_ran_again_has_lost_nothing() -> None:
    timeline = in_memory("node1@60s", "node2@90s", until="12m")
    assert timeline.job.outcome == "failed"
    assert all(a.lost_from_ns is None for a in timeline.attempts if a.started_ns > 2 * MINUTE)
    assert max(a.started_ns for a in timeline.attempts) > 2 * MINUTE


def test_perfetto_has_a_process_a_node_and_a_thread_a_replica() -> None:
    timeline = of(simulated(*LOST_NODE))
    events = perfetto_events(timeline)
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert [names[pid, None] for pid in range(5)] == ["job", "node0", "node1", "node2", "node3"]
    assert names[3, 3] == "trainer/2" and names[0, 2] == "generations of trainer"
    slices = [
        e for e in events if e["ph"] == "X" and e["cat"] == "attempt" and names[e["pid"], e["tid"]] == "trainer/2"
    ]
    assert (slices[0]["ts"], slices[0]["args"]["how"]) == (1700, "lost")
    assert slices[0]["ts"] + slices[0]["dur"] == 180_010_000
    fault = next(e for e in events if e.get("cat") == "fault")
    assert (fault["ph"], fault["s"], names[fault["pid"], None], fault["ts"]) == ("i", "p", "node2", 180_000_000)
    assert {"decision", "checkpoint", "generation", "phase"} <= {e.get("cat") for e in events}


def test_perfetto_slices_of_a_thread_are_nested_and_async_ones_are_closed() -> None:
    timeline = of(simulated("ps.py", "ps/1@4m", "node2@6m/1m"))
    events = [e for e in perfetto_events(timeline) if e["ph"] != "M"]
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    stacks: dict[tuple[int, int], list[float]] = {}
    for e in events:
        if e["ph"] == "X":
            stack = stacks.setdefault((e["pid"], e["tid"]), [])
            while stack and stack[-1] <= e["ts"] + 1e-6:
                stack.pop()
            assert not stack or e["ts"] + e["dur"] <= stack[-1] + 1e-6, e
            stack.append(e["ts"] + e["dur"])
    opened = [e["id"] for e in events if e["ph"] == "b"]
    assert opened and sorted(opened) == sorted(e["id"] for e in events if e["ph"] == "e")
    assert perfetto_json(timeline) == perfetto_json(of(simulated("ps.py", "ps/1@4m", "node2@6m/1m")))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(find_browser() or "", tmp_path / "profile")
    yield made
    made.close()


@needs_browser
def test_in_a_browser_a_bar_shows_the_decision_and_its_reason(browser: Browser, tmp_path: Path) -> None:
    opened(browser, of(simulated(*LOST_NODE)), tmp_path)
    lost = "attempts.find(a => names[a.replica] === 'trainer/2' && a.number === 1)"
    at = place_of(browser, lost)
    browser.mouse("mouseMoved", *at)
    browser.frame()
    tip = browser.value("document.getElementById('tip').innerText")
    assert "trainer/2, attempt 1" in tip and "node2 lost (killed)" in tip and "was lost with its node" in tip
    assert "Lost work" in tip
    browser.click(*at)
    assert "trainer/2, attempt 1" in details(browser)
    browser.value("document.querySelector('input[value=node]').click()")
    browser.frame()
    assert browser.value("rows.filter(r => r.kind === 'group').map(r => r.label)") == [f"node{i}" for i in range(4)]
    browser.click(*place_of(browser, lost))
    assert "trainer/2, attempt 1" in details(browser)


@needs_browser
def test_in_a_browser_the_keyboard_reaches_everything(browser: Browser, tmp_path: Path) -> None:
    opened(browser, of(simulated(*LOST_NODE)), tmp_path)
    browser.value("canvas.focus()")
    browser.press("ArrowDown")
    assert "trainer/0, attempt 1" in details(browser)
    browser.press("ArrowRight")
    assert "trainer/0, attempt 2" in details(browser)
    browser.press("ArrowDown")
    assert "trainer/1, attempt 2" in details(browser)
    browser.press("Home")
    browser.press("ArrowUp")
    browser.press("ArrowUp")
    assert "generation 1" in details(browser)
    browser.press("ArrowUp")
    assert "Fault node2@3m/2m" in details(browser)
    browser.press("n")
    assert "Incident 1: node2" in details(browser)
    before = browser.value("state.t1 - state.t0")
    browser.press("+")
    assert browser.value("state.t1 - state.t0") < before
    browser.press("0")
    assert browser.value("state.t1 - state.t0") == before
    browser.press("Escape")
    assert "The run" in details(browser) and "1 node_lost" in details(browser)


@needs_browser
def test_in_a_browser_keys_work_without_a_click_and_buttons_go_to_incidents(browser: Browser, tmp_path: Path) -> None:
    opened(browser, of(simulated(*LOST_NODE)), tmp_path)
    assert "The run" in details(browser) and "1 node_lost" in details(browser)
    browser.press("n")
    assert "Fault node2@3m/2m" in details(browser)
    browser.press("Escape")
    browser.value("document.getElementById('next').click()")
    assert "Incident 1: node2" in details(browser)
    browser.value("document.getElementById('next').click()")
    assert "Incident 2" in details(browser)
    browser.value("document.getElementById('previous').click()")
    assert "Incident 1: node2" in details(browser)
    browser.value("document.getElementById('filter').focus()")
    browser.press("n")  # typed, not a key of the page
    assert "Incident 1: node2" in details(browser)


@needs_browser
def test_in_a_browser_a_replica_that_hangs_looks_so_and_says_why_nothing_notices(
    browser: Browser, tmp_path: Path
) -> None:
    opened(browser, of(simulated("gang.py", "trainer/1@3m:hang")), tmp_path)
    hung = "attempts.find(a => a.hung !== null)"
    assert browser.value(f"names[{hung}.replica]") == "trainer/1"
    browser.value(f"select({hung})")
    assert "since 0:03:00" in details(browser) and "because trainer has no hang_after" in details(browser)


@needs_browser
def test_in_a_browser_an_unsaved_checkpoint_shows_the_reason(browser: Browser, tmp_path: Path) -> None:
    opened(browser, of(simulated("gang.py", "trainer@1m:disk-full/1m")), tmp_path)
    browser.value("canvas.focus()")
    browser.press("n")
    browser.press("n")
    assert "Not saved: trainer at step 60" in details(browser) and "the disk of trainer is full" in details(browser)
    browser.value("document.getElementById('incident-list').open = true")
    browser.frame()
    assert "the disk of trainer is full" in browser.value("document.getElementById('incident-list').innerText")


@needs_browser
def test_in_a_browser_light_and_dark_are_drawn_in_other_colours(browser: Browser, tmp_path: Path) -> None:
    opened(browser, of(simulated(*LOST_NODE)), tmp_path)
    pixel = "[...pen.getImageData(4, canvas.height - 4, 1, 1).data].slice(0, 3)"
    grounds = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.frame()
        grounds.append(sum(browser.value(pixel)))
    assert grounds[0] > 700 and grounds[1] < 120


@pytest.mark.slow
@needs_browser
def test_in_a_browser_a_thousand_incidents_of_64_replicas_open(browser: Browser, tmp_path: Path) -> None:
    timeline = timeline_of(*crash_loop(64, 1000))
    assert len(timeline.attempts) == 64 * 1001
    opened(browser, timeline, tmp_path)
    assert (tmp_path / "out.html").stat().st_size < 5_000_000
    browser.value("document.getElementById('incident-list').open = true")
    browser.frame()
    assert browser.value("document.querySelectorAll('#incident-list tbody tr').length") == 1000
    browser.value("document.querySelectorAll('#incident-list tbody button')[500].click()")
    browser.frame()
    assert "Incident 501" in details(browser)


@needs_browser
def test_in_a_browser_200_lanes_have_names_and_can_be_scrolled_to(browser: Browser, tmp_path: Path) -> None:
    opened(browser, timeline_of(*crash_loop(200, 3)), tmp_path)
    browser.press("f")
    assert browser.value("rows.filter(r => r.kind === 'lane').length") == 200
    browser.value("select(attempts.find(a => names[a.replica] === 'trainer/199'), true)")
    browser.frame()
    assert browser.value("scroller.scrollTop") > 500
    browser.click(*place_of(browser, "state.focus"))
    assert "trainer/199" in details(browser)
    browser.value(
        "{const f = document.getElementById('filter'); f.value = 'trainer/19'; f.dispatchEvent(new Event('input'))}"
    )
    browser.frame()
    assert browser.value("rows.filter(r => r.kind === 'lane').length") == 11
