"""Faults of three hosts, in a lab of network namespaces: torchrun and `flowdist torchrun`, turn by turn in one run.

    python benchmarks/hosts_in_lab.py [--faults worker,agent,power,port] [--trials 3] [--slow-trials 1] [--cap 60]
                                      [--write-docs]

The script is an endless loop of gloo all_reduces, with a worker on each host and a timeout of 30 s for collectives.
When all have done some steps, the fault comes. Measured: the time from the fault to the first all_reduce of all
remaining ranks in a new generation. torchrun gets what helps it: its shared store switched off, without which it does
not recover in torch 2.13, a last call of 1 s, and a monitor interval of 0.1 s. After `--cap` seconds a trial ends.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launchers import SCRIPT, Job, Size, are_many, end_all, hit, own_descendants, steps_after
from sections import write_section

from flowdist.runtime.clock import boot_ns
from tests.lab.network import Lab, LabUnavailable

HOSTS = ("h0", "h1", "h2")
HIT = "h2"
PORT = 29400
START_S = 300.0
MEETING = [f"--rdzv-endpoint={HOSTS[0]}:{PORT}", "--rdzv-backend=c10d", "--rdzv-id=bench", "--nnodes=1:3"]
COMMON = [*MEETING, "--nproc-per-node=1", "--max-restarts=100"]
TORCHRUN = ["torch.distributed.run", *COMMON, "--rdzv-conf=last_call_timeout=1", "--monitor-interval=0.1"]
FLOWDIST = ["flowdist", "torchrun", *COMMON]
MODES = {"torchrun": TORCHRUN, "flowdist": FLOWDIST}


class HostsJob(Job):
    """One job on the hosts of a lab: the same command on each."""

    def __init__(self, lab: Lab, mode: str) -> None:
        super().__init__(lab.folder, Size(3, 3), SCRIPT.replace("seconds=300", "seconds=30"))
        self._lab = lab
        self.env |= {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.env["FLOWDIST_TOKEN"] = "of this benchmark alone"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        for host in HOSTS:
            command = [*lab.on(host), sys.executable, "-m", *MODES[mode], str(lab.folder / "script.py")]
            with (lab.folder / f"{host}.txt").open("wb") as output:
                self.agents[host] = subprocess.Popen(
                    command, cwd=lab.folder / host, env=self.env, stdout=output, stderr=output
                )

    def worker_on(self, host: str) -> int:
        ours = set(self._lab.hosts[host].processes)
        return max((stamp for stamp in self.look() if stamp.pid in ours), key=lambda stamp: stamp.t_ns).pid

    def is_over(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents.values())


class Fault(NamedTuple):
    """One fault; it returns when it happened. `after` is the number of hosts that train afterwards."""

    what: str
    after: int
    happen: Callable[[Lab, HostsJob], int]
    bar: float | None = None  # flowdist's time is to be at most so much of torchrun's
    silent: bool = False  # flowdist notices it by the lease


def _power_off(lab: Lab, job: HostsJob) -> int:
    event_ns = boot_ns()
    lab.power_off(HIT)
    return event_ns


def _port_down(lab: Lab, job: HostsJob) -> int:
    event_ns = boot_ns()
    lab.port_down(HIT)
    return event_ns


def _kill_agent_process(lab: Lab, job: HostsJob) -> int:
    """Kill torchrun's agent, which is its command; of flowdist the command, which is the parent of all the rest."""
    return hit([job.agents[HIT].pid], signal.SIGKILL)


FAULTS = {
    "worker": Fault("SIGKILL of a worker", 3, lambda lab, job: hit([job.worker_on(HIT)], signal.SIGKILL), 0.1),
    "agent": Fault("SIGKILL of the agent of a host (the command)", 2, _kill_agent_process, 0.1),
    "power": Fault("a host is powered off", 2, _power_off, silent=True),
    "port": Fault("the switch port of a host goes down", 2, _port_down, silent=True),
}


def measure(fault: Fault, mode: str, cap_s: float) -> float | None:
    """Return the seconds from the fault to the first all_reduce of all that remain; None: not within `cap_s`."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder, Lab(Path(folder), HOSTS) as lab:
        job = HostsJob(lab, mode)
        if not job.until(lambda stamps: are_many(stamps, len(HOSTS)), START_S):
            raise SystemExit(f"{mode} did not start:\n{job.said()}")
        event_ns = fault.happen(lab, job)
        is_back = job.until(lambda stamps: len(steps_after(stamps, event_ns, fault.after)) == fault.after, cap_s)
        if not is_back:
            return None
        return (
            max(words["step"] for words in steps_after(job.look(), event_ns, fault.after).values()) - event_ns
        ) / 1e9


Times = dict[str, list[float | None]]


def table(results: dict[str, Times], cap_s: float) -> str:
    """Return the table of evidence/benchmarks.md: medians, and the smallest and largest time of several."""
    lines = ["| fault of one of three hosts | torchrun | flowdist | flowdist / torchrun |", "|---|---|---|---|"]
    for name, times in results.items():
        theirs, ours = (_cell(times[mode], cap_s) for mode in MODES)
        lines.append(f"| {FAULTS[name].what} | {theirs} | {ours} | {_ratio(times, cap_s)} |")
    return "\n".join(lines)


def _cell(times: list[float | None], cap_s: float) -> str:
    found = sorted(time for time in times if time is not None)
    lost = f"not within {cap_s:.0f} s" + (f" in {len(times) - len(found)} of {len(times)}" if len(times) > 1 else "")
    if not found:
        return f"not within {cap_s:.0f} s ({len(times)})"
    spread = f" ({found[0]:.2f} to {found[-1]:.2f}, {len(found)})" if len(found) > 1 else " (1)"
    return f"{statistics.median(found):.2f} s{spread}" + (f"; {lost}" if len(found) < len(times) else "")


def _ratio(times: Times, cap_s: float) -> str:
    """Return flowdist's median as a share of torchrun's; below that of the cap if torchrun has no median."""
    ours, theirs = ([time if time is not None else cap_s for time in times[mode]] for mode in ("flowdist", "torchrun"))
    sign = "under " if statistics.median(theirs) >= cap_s else ""
    return f"{sign}{statistics.median(ours) / statistics.median(theirs):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default=",".join(FAULTS), type=lambda text: text.split(","))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--slow-trials", type=int, default=1, help="of torchrun, which takes half a minute")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds after which a trial is given up")
    parser.add_argument("--write-docs", action="store_true", help="replace the table of evidence/benchmarks.md")
    options = parser.parse_args()
    own_descendants()
    results: dict[str, Times] = {name: {mode: [] for mode in MODES} for name in options.faults}
    for turn in range(options.trials):
        for name, times in results.items():
            for mode in MODES:
                if mode == "torchrun" and turn >= options.slow_trials:
                    continue
                try:
                    times[mode].append(measure(FAULTS[name], mode, options.cap))
                except LabUnavailable as error:
                    sys.exit(f"no lab: {error}")
                finally:
                    end_all()
                print(f"{name}, {mode}, trial {turn + 1}: {times[mode][-1]}", file=sys.stderr, flush=True)
    text = table(results, options.cap)
    print(text)
    if options.write_docs:
        write_section("hosts in a lab", text)


if __name__ == "__main__":
    main()
