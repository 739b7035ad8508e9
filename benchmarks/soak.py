"""Random faults against real processes for half an hour: does the job finish, and is nothing left of it?

    python benchmarks/soak.py --minutes 30 --seed 1         make soak
    python benchmarks/soak.py --minutes 2 --seed 1          the short form

Trainers that sum over gloo, a parameter server and an evaluator on four logical nodes. A nemesis draws from the seed
what befalls them, one fault every few seconds, of all kinds that such a job has to survive; the same plan goes to
`flowdist run --fail`. At the end: the job has succeeded; no two attempts of a replica worked at the same time (R19);
no checkpoint went back; the journal replays; no process, socket, file or shared memory is left; and neither the memory
nor the open files of controller, agents, guardians, spawners and supervisor have grown. Exit code 3 if not all is so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from flowdist.control.controller import Controller
from flowdist.control.invariants import check_job
from flowdist.record.journal import FaultLine, Header, Record
from flowdist.record.reader import read_whole_lines

NODES = 4
QUIET_S = 25.0  # at the end, so that everything is whole again
PATIENCE_S = 180.0  # for the job to end when it has been told to
SAMPLE_S = 2.0
WARM_UP_S = 45.0  # of a process, before its memory counts
LIFE_MIN_S = 120.0  # of what is measured; shorter lives say nothing about growth
GROWTH_MAX_KIB = 64.0  # per minute, by a straight line through the samples
FILES_MAX = 4  # open files more in the last quarter of a life than in the first
OVERLAP_MAX_S = 1.0  # of two attempts: what goes on after a pause is killed within moments
MARK = "FLOWDIST_SOAK_MARK"

TOPOLOGY = """
from flowdist import Node, Restart, Topology

t = Topology("soak", nodes=4 * [Node(cpu=4)], min_uptime="5s", controller_outage="20s",
             move_after=1000, cordon_after=1000)
ps = t.role("ps", ["python", "ps.py"], kind="service", cpu=0.5, ports=["rpc"], ready_when="tcp:rpc", state="checkpoint",
            restart=Restart("replica", max_restarts=1000, backoff="0s"))
trainer = t.role("trainer", ["python", "trainer.py"], replicas="2:3", cpu=2, cooldown="2s", hang_after="10s",
                 depends_on=[ps.ready()], restart=Restart("role", max_restarts=1000, backoff="0s"))
t.role("evaluator", ["python", "evaluator.py"], cpu=0.5, primary=False, depends_on=[trainer.started()],
       restart=Restart("replica", max_restarts=1000, backoff="0s"))
"""
PS = """
import socket
from flowdist import worker

server = socket.create_server(("127.0.0.1", worker.port("rpc")))
while True:
    server.accept()[0].close()
"""
TRAINER = """
import json, os, socket, time, torch, torch.distributed as dist
from flowdist import worker

info = worker.info()
dist.init_process_group()
step = torch.tensor([json.loads(worker.latest().read_text())["step"] if worker.latest() else 0])
dist.broadcast(step, src=info.source_rank)
step, is_over = int(step), torch.zeros(1)
with open(f"beats/{info.replica.replace('/', '-')}", "a") as beats:
    while not is_over:
        if worker.should_stop(step + 1):
            break
        step += 1
        is_over = torch.tensor([int(os.path.exists("enough"))])
        dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
        worker.progress(step)
        print(info.attempt, time.monotonic(), file=beats, flush=True)
        if step % 10 == 0:
            host, _, port = worker.peers("ps", "rpc")[0].partition(":")
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError:
                pass  # it restarts
        if step % 40 == 0 and info.rank == 0:
            path = worker.checkpoint_dir() / f"step-{step}-{info.generation}.json"
            path.write_text(json.dumps({"step": step}))
            try:
                worker.commit(path, step=step)
            except TimeoutError:
                pass  # nobody knows: the next one counts
        time.sleep(0.1)
dist.destroy_process_group()
"""
EVALUATOR = """
import json, time
from flowdist import worker

best = 0
while True:
    step = json.loads(worker.latest().read_text())["step"] if worker.latest() else 0
    print("the checkpoint went back from" if step < best else "evaluated", best, step, flush=True)
    best = max(best, step)
    time.sleep(1)
"""


class Nemesis:
    """Draws a plan that the job has to survive: never more than two nodes away, nobody held up for too long."""

    def __init__(self, seed: int, lasts_s: float) -> None:
        self._random, self._lasts_s = random.Random(seed), lasts_s
        self._busy_until_s = dict.fromkeys((f"node{i}" for i in range(NODES)), 0.0)

    def plan(self) -> list[str]:
        faults, at_s = [], 10.0
        while at_s < self._lasts_s:
            fault = (self._node_fault(at_s) if self._random.random() < 0.6 else None) or self._worker_fault()
            faults.append(fault.replace("@", f"@{round(at_s * 1000)}ms", 1))
            at_s += self._random.uniform(2, 10)
        return faults

    def _worker_fault(self) -> str:
        who = self._random.choice(["trainer/0", "trainer/1", "trainer/2", "ps/0", "evaluator/0"])
        kinds = ["", "", ":exit=7", ":oom", f":pause/{self._random.randint(500, 5000)}ms", ":slow=4x/5s"]
        kinds += [":hang"] if who.startswith("trainer") else []
        return f"{who}@{self._random.choice(kinds)}"

    def _node_fault(self, at_s: float) -> str | None:
        if self._random.random() < 0.15:
            return "controller@"
        free = [node for node, until in self._busy_until_s.items() if until <= at_s]
        lasts_s = self._random.uniform(1, 12)
        node, duration = self._random.choice(sorted(self._busy_until_s)), f"/{round(lasts_s * 1000)}ms"
        kinds = ["", ":leave", ":pause", ":lost", ":partition=controller", ":cut-to=controller"]
        kinds += [":delay=150ms", ":drop=0.2", f"controller:partition={node}", f"controller:cut-to={node}"]
        if node == "node0":  # its agent lives through all of it: its memory is what is measured
            kinds = kinds[2:]
        kind = self._random.choice(kinds)
        if node not in free or len(free) < NODES - 1:
            return None
        self._busy_until_s[node] = at_s + lasts_s + 12
        target, colon, what = kind.partition(":")
        return f"{target or node}@{colon}{what}{duration}"


class Sample(NamedTuple):
    at_s: float
    kib: int  # of anonymous memory, in RAM or swapped out
    files: int


class Watch:
    """Our own processes of the run, sampled while they live."""

    NAMES: ClassVar = {
        "runtime.controller.controller_main": "controller",
        "runtime.agent.guardian": "node",
        "-m\0flowdist\0run": "supervisor",
    }

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.samples: dict[tuple[str, int], list[Sample]] = {}  # by what it is and its pid
        self._start_s = time.monotonic()

    def marked(self) -> Iterator[int]:
        """Every process of the run that is no zombie."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)

    def look(self) -> None:
        now_s = time.monotonic() - self._start_s
        for pid in list(self.marked()):
            with contextlib.suppress(OSError, StopIteration):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                name = next(name for word, name in self.NAMES.items() if word in command)
                sizes = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
                kib = sum(int(sizes[key].split()[0]) for key in ("Anonymous", "Swap"))
                files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                self.samples.setdefault((name, pid), []).append(Sample(now_s, kib, files))

    def lives(self) -> Iterator[tuple[str, list[Sample]]]:
        """Those that were long enough, without their warm-up."""
        for (name, pid), samples in self.samples.items():
            grown = [sample for sample in samples if sample.at_s >= samples[0].at_s + WARM_UP_S]
            if len(grown) > 1 and grown[-1].at_s - samples[0].at_s >= LIFE_MIN_S:
                yield f"{name} {pid}", grown


def growth_kib(samples: list[Sample]) -> float:
    """KiB a minute: the slope of the straight line with the least squares."""
    mean_s = sum(sample.at_s for sample in samples) / len(samples)
    mean_kib = sum(sample.kib for sample in samples) / len(samples)
    up = sum((sample.at_s - mean_s) * (sample.kib - mean_kib) for sample in samples)
    return 60 * up / sum((sample.at_s - mean_s) ** 2 for sample in samples)


def more_files(samples: list[Sample]) -> int:
    """How many more were open, at least, in the last quarter than at most in the first."""
    quarter = max(1, len(samples) // 4)
    return min(sample.files for sample in samples[-quarter:]) - max(sample.files for sample in samples[:quarter])


def overlaps(beats: str) -> list[str]:
    """Attempts that went on working after the next one had begun to. One that stood still meanwhile did not work."""
    times: dict[int, list[float]] = {}
    for line in beats.splitlines():
        with contextlib.suppress(ValueError, IndexError):  # a line that a kill has cut
            times.setdefault(int(line.split()[0]), []).append(float(line.split()[1]))
    found = []
    for old, new in zip(sorted(times), sorted(times)[1:], strict=False):
        beside = [at_s for at_s in times[old] if at_s > times[new][0]]
        if beside and beside[-1] - beside[0] > OVERLAP_MAX_S:
            found.append(f"attempt {old} worked for {beside[-1] - beside[0]:.2f} s beside attempt {new}")
    return found


class Soak:
    """One run of the job in `folder`, which has private folders for whatever looks for a place of its own."""

    def __init__(self, folder: Path, seed: int, minutes: float) -> None:
        self._folder, self._seed, self._minutes = folder, seed, minutes
        self.plan = Nemesis(seed, 60 * minutes - QUIET_S).plan()
        self._watch = Watch(mark := uuid.uuid4().hex)
        self._private = [folder / name for name in ("tmp", "runtime", "home")]
        self._shared_before = shared_memory()
        files = {"topology.py": TOPOLOGY, "ps.py": PS, "trainer.py": TRAINER, "evaluator.py": EVALUATOR}
        for path in (*self._private, folder / "beats"):
            path.mkdir(mode=0o700)
        for name, text in files.items():
            (folder / name).write_text(text)
        tmp, runtime, home = map(str, self._private)
        own = {MARK: mark, "TMPDIR": tmp, "XDG_RUNTIME_DIR": runtime, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}
        self._env = {**os.environ, **own}

    def run(self) -> list[str]:
        """What is wrong; nothing, if all is well."""
        options = [word for fault in self.plan for word in ("--fail", fault)]
        with (self._folder / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "flowdist", "run", *options],
                cwd=self._folder,
                env=self._env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = self._follow(process)
            finally:
                for pid in [] if process.poll() is not None else list(self._watch.marked()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
        wrong = [] if code == 0 else ["the job did not end in time" if code is None else f"the job ended with {code}"]
        return wrong + self._left() + self._read_journal() + self._grown()

    def _follow(self, process: subprocess.Popen[bytes]) -> int | None:
        start_s, told_s = time.monotonic(), 0.0
        while process.poll() is None:
            now_s = time.monotonic() - start_s
            if now_s > 60 * self._minutes:
                (self._folder / "enough").touch()
            if now_s > 60 * self._minutes + PATIENCE_S:
                return None
            self._watch.look()
            if now_s >= told_s:
                self._tell(now_s)
                told_s = now_s + 30
            time.sleep(SAMPLE_S)
        return process.returncode

    def _tell(self, now_s: float) -> None:
        text = (self._folder / "output").read_text(errors="replace")
        now_kib = {name: samples[-1].kib for (name, _), samples in self._watch.samples.items()}
        sizes = ", ".join(f"{name} {kib / 1024:.1f} MiB" for name, kib in now_kib.items())
        faults, recoveries = text.count(" hits "), len(re.findall(r"\d: (?:re-formed|recovered) after", text))
        print(f"{now_s:6.0f} s {faults:4} faults {recoveries:4} recoveries  {sizes}", flush=True)

    def _left(self) -> list[str]:
        """Of a run that is over."""
        wrong = [f"process {pid} is left: {command_of(pid)}" for pid in self._watch.marked()]
        files = [path for folder in self._private for path in folder.rglob("*")]
        # torch makes the folder of its cache when an optimizer is made, under any launcher
        wrong += [f"{path} is left" for path in files if not path.name.startswith("torchinductor_")]
        wrong += [f"socket {path} is left" for path in self._folder.rglob("*") if path.is_socket()]
        sockets = Path("/proc/net/unix").read_text().split()
        wrong += [f"socket {name} is open" for name in sockets if str(self._folder) in name]
        return wrong + [f"/dev/shm/{name} is left" for name in left_in_memory(self._shared_before)]

    def _read_journal(self) -> list[str]:
        """It replays, and tells what happened; so do the workers' own files."""
        beats = sorted((self._folder / "beats").iterdir())
        wrong = [f"{path.name}: {text}" for path in beats for text in overlaps(path.read_text())]
        run = self._folder / "runs/latest"
        said = (self._folder / "output").read_text(errors="replace").splitlines()
        ours = [
            line for line in said if not line.startswith("[") or "went back" in line
        ]  # workers may fall over others
        for path in run.glob("*.log"):
            ours += path.read_text(errors="replace").splitlines()
        bad = ("went back", "not replay", "outlive", "Traceback")
        wrong += [line for line in ours if any(word in line for word in bad)]
        lines, *_ = read_whole_lines((run / "journal.jsonl").read_bytes())
        assert isinstance(lines[0], Header)
        controller = Controller(lines[0].graph, lines[0].known_nodes)
        for line in lines:
            if isinstance(line, Record) and tuple(controller.handle(line.event, line.t_ns)) != line.effects:
                wrong.append(f"line {line.n} of the journal does not replay")
                break
            check_job(controller.state)
        hits = Counter(kind_of(line.spec) for line in lines if isinstance(line, FaultLine))
        causes = Counter(incident.kind for incident in controller.state.incidents)
        for what, counts in (("faults that hit", hits), ("incidents", causes)):
            print(f"{what}: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}")
        return wrong

    def _grown(self) -> list[str]:
        """Memory and open files of what lived long enough."""
        wrong = []
        for name, samples in self._watch.lives():
            growth, files = growth_kib(samples), more_files(samples)
            print(f"{name:18} {samples[0].kib:7} to {samples[-1].kib:7} KiB, {growth:+7.1f} KiB/min, {files:+d} files")
            if growth > GROWTH_MAX_KIB:
                wrong.append(f"{name} grows by {growth:.0f} KiB a minute, more than {GROWTH_MAX_KIB:g}")
            if files > FILES_MAX:
                wrong.append(f"{name} has {files} more files open than at first")
        return wrong


def kind_of(spec: str) -> str:
    """`node1@3s:pause/2s` is a pause of a node."""
    target, _, rest = spec.partition("@")
    kind = rest.partition(":")[2].partition("/")[0].partition("=")[0] or "kill"
    return f"{kind} of {'node' if target.startswith('node') else target.partition('/')[0]}"


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120]
    return "gone by now"


def shared_memory() -> set[str]:
    """The names of all that there is on this machine."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def left_in_memory(before: set[str], patience_s: float = 60.0) -> list[str]:
    """What is new in shared memory, and stays there though nobody uses it: other jobs on this machine tidy up, too."""
    give_up_s = time.monotonic() + patience_s
    while left := sorted(name for name in shared_memory() - before if not is_in_use(name)):
        if time.monotonic() > give_up_s:
            return left
        time.sleep(0.2)
    return []


def is_in_use(name: str) -> bool:
    """By somebody who lives, and so is none of ours: other jobs on this machine have shared memory, too."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"/dev/shm/{name}" in (entry / "maps").read_text(errors="replace"):
                return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="Keep the folder of the run.")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.seed, options.minutes)
    print(f"{len(soak.plan)} faults in {options.minutes:g} minutes, seed {options.seed}, in {folder}", flush=True)
    wrong = soak.run()
    for text in wrong:
        print(f"VIOLATED: {text}")
    again = f"python benchmarks/soak.py --minutes {options.minutes:g} --seed {options.seed}"
    print(f"{'violated' if wrong else 'all is well'}; again: {again}")
    if not wrong and not options.keep:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    sys.exit(3 if wrong else 0)


if __name__ == "__main__":
    main()
