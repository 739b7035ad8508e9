"""The scenarios of `scenarios/`, as they are, on real hosts in a lab: the same faults, the same decisions?

    python -m tests.lab.scenarios [NAME ...] [--labs 4]

Topology, options and faults of a scenario are not changed, but for the time in which nothing happens: `stories.py` cuts
it short. The plan is played in the simulator and in a lab. There each node is a host with one core, the controller has
a host of its own, and the injector of the runtime orders the faults, which `lab_faults.py` carries out. The decisions
are compared: incidents with their causes, restart sets and charges, the sizes of all worlds, what became of each role.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from flowdist.control.protocol.events import CordonRequested
from flowdist.graph import SECOND
from flowdist.record.journal import Header, Line, Record
from flowdist.record.reader import RecordReader
from flowdist.record.replay import Replay
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.injection.injector import Injector
from flowdist.runtime.wire.framing import LineBuffer
from tests.lab.beating_job import job_start_ns
from tests.lab.beats import BEATER, overlaps, read_beats
from tests.lab.lab_faults import LabFaults
from tests.lab.network import Lab, LabUnavailable
from tests.lab.stories import (
    FOLDER,
    Decisions,
    Story,
    decisions_of,
    moments,
    read_story,
    shifted,
    simulate,
    why_not,
    worlds_of,
)
from tests.runtime.harness import Job

PATIENCE_NS = 60 * SECOND  # after the last moment of the plan
PENDING_NS = 400 * SECOND  # instead, for jobs that fail: the longest `pending_timeout` is 5 min
SETTLE_NS = 6 * SECOND  # a lease and two seconds
LOOK_NS = SECOND
CONTROL = "control"
_LONGER = "a connection is silent for longer than its network: TCP sends lost data again after pauses that double"
MAY_DIFFER = {  # scenarios whose decisions a lab may decide otherwise, and why
    "r7_a_failure_while_a_node_is_overdue_is_charged_when_it_is_heard": _LONGER,
    "r19_a_short_silence_changes_nothing": _LONGER,
    "torchrun7_a_tight_lease_splits_no_brain": _LONGER,
}


class Tail:
    """The lines of a journal as they are written."""

    def __init__(self, journal: Path) -> None:
        command = ["tail", "--lines=+1", "--follow", str(journal)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._reader, self._buffer = RecordReader(), LineBuffer()

    def lines(self, wait_s: float) -> list[Line]:
        """Wait for lines, but not longer than so many seconds, and return those that have come."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, wait_s))[0]:
            return []
        data = os.read(self._process.stdout.fileno(), 1 << 20)
        return [self._reader.read(line + b"\n") for line in self._buffer.feed(data)]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class LabRun:
    """The job of one scenario in a lab.

    Args:
        lab: The lab: the host `control`, and a host for each node.
        story: The scenario.
    """

    def __init__(self, lab: Lab, story: Story) -> None:
        self._lab, self._story = lab, story
        self._end, programs = lab.folder / "end", lab.folder / "bin"
        programs.mkdir()
        (programs / "sleep").write_text(f"#!{sys.executable}\n{BEATER}")
        (programs / "sleep").chmod(0o755)
        self._env = {"LAB_BEATS": str(lab.folder / "beats"), "LAB_END": str(self._end), "FLOWDIST_TOKEN": "of this lab"}
        self._env["PATH"] = f"{programs}:{os.environ['PATH']}"
        self._cores = sorted(os.sched_getaffinity(0))
        self._lines: list[Line] = []
        self._jobs: dict[str, Job] = {}  # the commands on the hosts of the nodes
        self._replay: Replay | None = None  # from the first worlds on

    def run(self, simulated: Decisions) -> tuple[Decisions, list[str]]:
        """Play the scenario; return the decisions, and the faults that have hit nothing.

        The job may end when it has come to what was simulated, or when PATIENCE_S have passed without that.
        """
        path = str(FOLDER / self._story.scenario.topology)
        self._control = self._start(CONTROL, "run", path, *self._story.options, "--listen", "control:29400")
        self._control.until("control joined")
        self._control.operate(CordonRequested(CONTROL))  # the scenario does not know this node
        self._start_ns = job_start_ns(self._control)
        self._tail = Tail(self._control.run_dir / "journal.jsonl")
        try:
            self._join_all()
            self._play(simulated)
        finally:
            self._tail.close()
        self._end.touch()
        self._control.finish()
        header, lines = self._control.journal()
        replay = Replay(header, strict=True).follow(lines)
        return decisions_of(replay.job, lines, self._story.plan), [fault.spec for fault in self._injector.never_fired()]

    def _start(self, host: str, verb: str, *words: str) -> Job:
        core = self._cores[self._lab.names.index(host) % len(self._cores)]
        return self._lab.start(host, verb, *words, env=self._env, before=("taskset", "--cpu-list", str(core)))

    def _join(self, host: str) -> Job:
        return self._start(host, "join", "control:29400")

    def _join_all(self) -> None:
        """Let the hosts join in the order of the topology: replicas are placed in the order of the nodes."""
        for node in self._story.graph.cluster.nodes:
            self._jobs[node.name] = self._join(node.name)
            self._control.until(f"{node.name} joined")

    def _now(self) -> int:
        return boot_ns() - self._start_ns

    def _play(self, simulated: Decisions) -> None:
        """Wait for the first worlds, then carry out the plan until the job has come to what was simulated."""
        first = {world: sizes[:1] for world, sizes in simulated.worlds.items()}
        self._read_until(lambda: worlds_of(self._lines) == first, self._now() + PATIENCE_NS)
        plan = shifted(self._story.plan, self._now())
        self._faults = LabFaults(self._lab, self._control, self._jobs, self._join, self._now)
        self._injector = Injector(plan, self._story.graph, self._control.run_dir, self._faults)
        header, *lines = self._lines
        assert isinstance(header, Header)
        self._replay = Replay(header)
        for line in lines:
            self._observe(line)
        last_ns = max([self._now(), *moments(plan)])
        patience_ns = PATIENCE_NS if simulated.outcome == "succeeded" else PENDING_NS
        patience_ns += 2 * sum(fault.offset_ns for fault in plan.faults)  # those that wait for an event
        self._read_until(lambda: self._is_over(simulated, last_ns), last_ns + patience_ns)

    def _read_until(self, is_over: Callable[[], bool], until_ns: int) -> None:
        """Read the journal, and carry out what is due, until `is_over`, or until that time of the job."""
        while not is_over() and (now := self._now()) < until_ns:
            next_ns = min([until_ns, now + LOOK_NS, *self._next()])
            for line in self._tail.lines((next_ns - now) / 1e9):
                self._lines.append(line)
                self._observe(line)
            if self._replay is not None:
                self._injector.fire(self._replay.job, self._now())
                self._faults.come_back()

    def _next(self) -> list[int]:
        times = (self._injector.next_ns(), self._faults.next_ns()) if self._replay is not None else ()
        return [at for at in times if at is not None]

    def _observe(self, line: Line) -> None:
        if self._replay is not None:
            self._replay.hear(line)
            if isinstance(line, Record):
                self._injector.observe(self._replay.job, line)

    def _is_over(self, simulated: Decisions, last_ns: int) -> bool:
        """Return whether the job has ended, or has come to what was simulated and stays there."""
        assert self._replay is not None
        job = self._replay.job
        if job.outcome is not None or simulated.outcome != "succeeded":
            return job.outcome is not None
        is_done = not self._next() and not self._injector.never_fired() and self._now() > last_ns + SETTLE_NS
        is_formed = all(world.formed_ns is not None for world in job.worlds.values())
        return is_done and is_formed and worlds_of(self._lines) == simulated.worlds


class Outcome(NamedTuple):
    """What became of one scenario: `cannot` says why a lab cannot play it, `differs` what was decided otherwise."""

    name: str
    cannot: str = ""
    differs: tuple[str, ...] = ()
    took_s: float = 0.0

    def __str__(self) -> str:
        if self.cannot:
            return f"{self.name}: not played: {self.cannot}"
        known = f" (may differ: {MAY_DIFFER[self.name]})" if self.differs and self.name in MAY_DIFFER else ""
        return f"{self.name}: {'; '.join(self.differs) or 'same decisions'}{known} ({self.took_s:.0f} s)"

    @property
    def is_wrong(self) -> bool:
        """Whether decisions differ that must not."""
        return bool(self.differs) and self.name not in MAY_DIFFER


def play(folder: Path, scenario: Path) -> Outcome:
    """Play a scenario in the simulator and in a lab, and compare.

    Raises:
        LabUnavailable: No lab can be made here.
    """
    story = read_story(scenario)
    if reason := why_not(story):
        return Outcome(story.name, cannot=reason)
    simulated, began_ns = simulate(story), boot_ns()
    with Lab(folder, (CONTROL, *story.nodes)) as lab:
        try:
            real, unfired = LabRun(lab, story).run(simulated)
        except Exception:
            print(f"{story.name}:\n{lab.text}")
            raise
    differs = simulated.differences(real)
    differs += [f"fault {spec} has hit nothing" for spec in unfired]
    if len(real.worlds) == 1 and (found := overlaps(read_beats(folder / "beats"))):
        differs.append(f"two generations at once: {found[0]}")
    return Outcome(story.name, differs=tuple(differs), took_s=(boot_ns() - began_ns) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.scenarios")
    parser.add_argument("names", nargs="*", help="beginnings of names of scenarios (default: all)")
    parser.add_argument("--labs", type=int, default=4, help="how many at the same time (default: 4)")
    options = parser.parse_args()
    chosen = [path for path in sorted(FOLDER.glob("*.toml")) if path.stem.startswith(tuple(options.names or [""]))]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(options.labs) as pool:
        folders = [Path(top, path.stem[:20] + str(number)) for number, path in enumerate(chosen)]
        for folder in folders:
            folder.mkdir()
        try:
            for done in as_completed([pool.submit(play, *pair) for pair in zip(folders, chosen, strict=True)]):
                outcomes.append(done.result())
                print(outcomes[-1], flush=True)
        except LabUnavailable as error:
            pool.shutdown(cancel_futures=True)
            sys.exit(f"no lab: {error}")
    played = [outcome for outcome in outcomes if not outcome.cannot]
    same = sum(not outcome.differs for outcome in played)
    print(f"{same} of {len(played)} scenarios: same decisions; {len(outcomes) - len(played)} not played")
    sys.exit(any(outcome.is_wrong for outcome in outcomes))


if __name__ == "__main__":
    main()
