"""The faults of a plan, carried out on the hosts of a lab and on the network between them.

`flowdist run --fail` disturbs the frames of a connection, and kills what the supervisor or a joined host has started.
In a lab the network itself is cut, and a host loses its power. When a fault is due and what it hits, the injector of
the runtime decides in both cases.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from flowdist.faults.grammar import parse_fault
from flowdist.runtime.injection.remote_faults import Paused, apply, workers_hit
from flowdist.runtime.wire.frames import LinkFault, Operation, RemoteFault
from tests.lab.network import Lab
from tests.runtime.harness import Job

Join = Callable[[str], Job]


class LabFaults:
    """What the injector needs (`ProcessControl`), on a lab.

    Args:
        lab: The lab. Each node has a host of its name; the host `control` runs the controller.
        control: The command that runs the job, on the host `control`.
        jobs: The commands on the other hosts, by host. A host that comes back replaces its own.
        join: Starts the command that joins the job on a host.
        now: Returns the time of the job in ns.
    """

    def __init__(self, lab: Lab, control: Job, jobs: dict[str, Job], join: Join, now: Callable[[], int]) -> None:
        self._lab, self._control, self._jobs, self._join, self._now = lab, control, jobs, join, now
        self._later: list[tuple[int, Callable[[], None]]] = []  # what brings hosts and workers back, with its time
        self.noted: dict[str, str] = {}  # what was hit, by the fault
        self.warnings: list[str] = []

    def next_ns(self) -> int | None:
        """Return when `come_back` has to be called next, in ns of the job."""
        return min((at for at, _ in self._later), default=None)

    def come_back(self) -> None:
        """Bring back the hosts and workers whose time has come."""
        due = [item for item in self._later if item[0] <= self._now()]
        for item in due:
            self._later.remove(item)
            item[1]()

    def _after(self, delay_ns: int | None, act: Callable[[], None]) -> None:
        if delay_ns is not None:
            self._later.append((self._now() + delay_ns, act))

    def kill_node(self, name: str, back_after_ns: int | None) -> None:
        self._lab.power_off(name)
        self._after(back_after_ns, lambda: self._return(name))

    def make_node_leave(self, name: str, back_after_ns: int | None) -> None:
        self._jobs[name].process.send_signal(signal.SIGTERM)
        self._after(back_after_ns, lambda: self._return(name))

    def _return(self, name: str) -> None:
        self._lab.power_on(name)
        self._jobs[name] = self._join(name)

    def add_node(self, name: str) -> None:
        self._jobs[name] = self._join(name)

    def guardian_of(self, name: str) -> int | None:
        return None

    def kill_controller(self) -> None:
        for pid in self._control.named("flowdist.runtime.controller.controller_main"):
            os.kill(pid, signal.SIGKILL)

    def add_link_fault(self, fault: LinkFault) -> None:
        planned = parse_fault(fault.why)
        others = ["control" if name == "controller" else name for name in planned.others]
        if planned.target == "controller":
            others = ["control"]
        if fault.delay_ns:
            self._lab.delay(fault.node, fault.delay_ns / 1e9)
        elif fault.loss:
            self._lab.lose(fault.node, fault.loss)
        elif planned.kind == "lost":
            self._lab.isolate(fault.node)
        elif fault.cut == ("up",):
            self._lab.cut(fault.node, *others)
        elif fault.cut == ("down",):
            self._lab.cut("control", fault.node)
        else:
            self._lab.partition(fault.node, *others)

    def heal_link(self, node: str, why: str) -> None:
        self._lab.heal(node)

    def operate(self, event: Operation) -> None:
        self._control.operate(event)

    def note_fault(self, spec: str, target: str) -> None:
        self.noted[spec] = target

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def is_remote(self, node: str) -> bool:
        return True

    def apply_remotely(self, fault: RemoteFault) -> None:
        if fault.replica is None:
            self._lab.freeze(fault.node)
            self._after(fault.duration_ns, lambda: self._lab.thaw(fault.node))
            return
        for folder in workers_hit(self._run_dir(fault.node), fault):
            paused = apply(folder, fault)
            if paused is not None and fault.kind != "hang":
                self._after(fault.duration_ns, lambda paused=paused: _resume(paused))  # type: ignore[misc]

    def _run_dir(self, node: str) -> Path:
        """Return the newest folder of the run on a node's host."""
        runs = [path for path in (self._lab.folder / node / "runs").iterdir() if not path.is_symlink()]
        return max(runs, key=lambda path: path.stat().st_mtime_ns)


def _resume(paused: Paused) -> None:
    with contextlib.suppress(ProcessLookupError):
        paused.resume()
