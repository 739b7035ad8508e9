"""One job under torchrun or under flowdist, for a benchmark that breaks it: started, watched by stamps, and hit.

Workers write down what they have come to, each in a file of its own, on the clock that flowdist's journal counts by.
All processes are descendants of the benchmark, which is a subreaper: `end_all` leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flowdist.runtime.clock import boot_ns
from flowdist.runtime.processes.reaper import become_subreaper, descendants, kill_descendants

# A worker opens its file and reads its rank with its first word. Above its imports that would be the split.
STAMPING = """
import os, time
number = -1
def stamp(word):
    global number
    if number < 0:
        number = os.open(f"{os.environ['BENCH_STAMPS']}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    t_ns, rank, size = time.clock_gettime_ns(time.CLOCK_BOOTTIME), os.environ["RANK"], os.environ["WORLD_SIZE"]
    os.write(number, f"{word} {t_ns} {rank} {size}\\n".encode())
"""
STAMP = (
    STAMPING
    + """
import datetime, torch, torch.distributed as dist
stamp("imported")
def work(done=lambda: None):
    stamp("group")
    ones = torch.ones(4)
    while os.path.exists(f"/proc/{os.environ['BENCH_PID']}"):  # the benchmark was not killed
        dist.all_reduce(ones)
        stamp("step")
        done()
        ones.fill_(1)
        time.sleep(0.05)
"""
)
SCRIPT = f"""{STAMP}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
work()
"""
IN_PLACE = f"""
from flowdist import worker
{STAMP}
worker.elastic(lambda state: work(state.commit), worker.ElasticState(step=0), backend="gloo")
"""
STORE = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("up", flush=True)
time.sleep(3600)
"""
LOOK_S = 0.02
STEPS = 10  # that every rank does before the event


class Stamp(NamedTuple):
    """What a worker has come to: `imported`, `group`, `step`."""

    word: str
    t_ns: int
    rank: int
    size: int
    pid: int


class Size(NamedTuple):
    """How many nodes there are at first, how many there may be, and the workers of each."""

    nodes: int
    most: int
    procs: int = 1


class Job:
    """What the two have in common. `number` of a node is its place in the order of starting, from 0.

    What befalls it returns when it did, once all that it takes was found out.
    """

    def __init__(self, folder: Path, size: Size, script: str = SCRIPT, arguments: tuple[str, ...] = ()) -> None:
        self.folder, self.size, self.arguments = folder, size, arguments
        self.stamps_dir = folder / "stamps"
        self.stamps_dir.mkdir()
        (folder / "script.py").write_text(script)
        self._read: dict[str, int] = {}
        self.stamps: list[Stamp] = []
        self.env = {**os.environ, "BENCH_STAMPS": str(self.stamps_dir), "BENCH_PID": str(os.getpid())}
        self.env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def look(self) -> list[Stamp]:
        """All stamps until now."""
        for file in self.stamps_dir.iterdir():
            with file.open("rb") as stream:
                stream.seek(self._read.get(file.name, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[file.name] = self._read.get(file.name, 0) + len(whole)
            for line in whole.decode().splitlines():
                word, *numbers = line.split()
                self.stamps.append(Stamp(word, *(int(number) for number in numbers), pid=int(file.name)))
        return self.stamps

    def until(self, reached: Callable[[list[Stamp]], bool], patience_s: float) -> bool:
        """Whether it came to that in time, with the job still there."""
        end = time.monotonic() + patience_s
        while not reached(self.look()):
            if time.monotonic() > end or self.is_over():
                return reached(self.look())
            time.sleep(LOOK_S)
        return True

    def worker(self, rank: int) -> int:
        """The process that has this rank now."""
        return max((stamp for stamp in self.look() if stamp.rank == rank), key=lambda stamp: stamp.t_ns).pid

    def kill_worker(self) -> int:
        """That of rank 1, or the only one."""
        return hit([self.worker(min(1, self.size.nodes * self.size.procs - 1))], signal.SIGKILL)

    def kill_node(self, number: int) -> int:
        """Its agent and its workers, at once."""
        return hit([self.agent(number), *self.workers_of(number)], signal.SIGKILL)

    def term_agent(self, number: int) -> int:
        return hit([self.agent(number)], signal.SIGTERM)

    def stop_node(self, number: int) -> int:
        """Everything on it stands still: nobody hears of it any more, and no connection is closed."""
        root = self.root_of(number)
        return hit([root, *descendants(root)], signal.SIGSTOP)

    def workers_of(self, number: int) -> list[int]:
        mine = set(descendants(self.root_of(number)))
        return sorted({stamp.pid for stamp in self.look()} & mine)

    def agent(self, number: int) -> int:
        raise NotImplementedError

    def root_of(self, number: int) -> int:
        raise NotImplementedError

    def add_node(self) -> int:
        raise NotImplementedError

    def is_over(self) -> bool:
        raise NotImplementedError

    def start_again(self) -> int:
        """End the job in order, and start the same command once more; return when it was started."""
        raise NotImplementedError

    def said(self) -> str:
        """Its last words, for when it went wrong."""
        texts = [file.read_text(errors="replace") for file in sorted(self.folder.glob("*.txt"))]
        return "\n".join(text[-2000:] for text in texts)


class Torchrun(Job):
    """An agent for each node; the first hosts the store, unless it is `outside`."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        script: str = SCRIPT,
        arguments: tuple[str, ...] = (),
        *,
        shares_store: bool = False,
        outside: bool = False,
    ) -> None:
        super().__init__(folder, size, script, arguments)
        self._port = free_port()
        self._outside = outside
        if not shares_store:
            self.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if outside:
            store = subprocess.Popen([sys.executable, "-c", STORE, str(self._port)], stdout=subprocess.PIPE)
            assert store.stdout is not None
            store.stdout.readline()
        self._agents: list[subprocess.Popen[bytes]] = []
        for _ in range(size.nodes):
            self._start_agent()
            if not outside and size.nodes > 1 and len(self._agents) == 1:
                until_listening(self._port)  # the store is its own

    def add_node(self) -> int:
        event_ns = boot_ns()
        self._start_agent()
        return event_ns

    def _start_agent(self) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-id=bench"]
        command += [f"--nnodes=1:{self.size.most}", f"--nproc-per-node={self.size.procs}", "--max-restarts=100"]
        command += [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--local-addr=127.0.0.1"]
        command += ["--rdzv-conf=is_host=0"] if self._outside else []
        with (self.folder / f"agent{len(self._agents)}.txt").open("wb") as output:
            argv = [*command, "script.py", *self.arguments]
            agent = subprocess.Popen(argv, cwd=self.folder, env=self.env, stdout=output, stderr=output)
        self._agents.append(agent)

    def agent(self, number: int) -> int:
        return self._agents[number].pid

    def root_of(self, number: int) -> int:
        return self._agents[number].pid

    def is_over(self) -> bool:
        return all(agent.poll() is not None for agent in self._agents)

    def start_again(self) -> int:
        for agent in self._agents:
            end(agent)
        self._agents.clear()
        self._port = free_port()
        event_ns = boot_ns()
        self._start_agent()
        return event_ns


class FlowdistTorchrun(Job):
    """`flowdist torchrun` on one node, as a user types it."""

    def __init__(self, folder: Path, size: Size, script: str = SCRIPT, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(folder, size, script, arguments)
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "flowdist", "torchrun", f"--nproc-per-node={self.size.procs}"]
        command += ["--max-restarts=100", "script.py", *self.arguments]
        with (self.folder / "flowdist.txt").open("wb") as output:
            self._run = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=output, stderr=output)

    def is_over(self) -> bool:
        return self._run.poll() is not None

    def start_again(self) -> int:
        end(self._run)
        event_ns = boot_ns()
        self._start()
        return event_ns


class Flowdist(Job):
    """One `flowdist run`. `options` are for its command line."""

    def __init__(self, folder: Path, size: Size, options: tuple[str, ...], script: str = SCRIPT) -> None:
        super().__init__(folder, size, script)
        command = [sys.executable, "-m", "flowdist", "run", "script.py", "--max-restarts", "100", *options]
        command += ["--replicas", f"1:{size.most}x{size.procs}", "--nodes", str(size.nodes), "--runs", "r"]
        with (folder / "flowdist.txt").open("wb") as output:
            self._run = subprocess.Popen(command, cwd=folder, env=self.env, stdout=output, stderr=output)
        self._added: list[int] = []  # nodes that came later: their guardians

    def root_of(self, number: int) -> int:
        if number >= self.size.nodes:
            return self._added[number - self.size.nodes]
        return self._guardians()[f"node{number}"][0]

    def agent(self, number: int) -> int:
        """The guardian's second child: the spawner is its first."""
        return sorted(pid for pid in descendants(self.root_of(number)) if parent_of(pid) == self.root_of(number))[1]

    def add_node(self) -> int:
        """A guardian more, as the supervisor would start it."""
        config = dict(self._guardians()["node0"][1])
        number = self.size.nodes + len(self._added)
        lifeline, _held = os.pipe()  # nobody closes it: all is killed
        config["node"] = {**config["node"], "name": f"node{number}"}
        config |= {"number": number, "lifeline": lifeline, "lock": os.open(self.folder, os.O_RDONLY)}
        command = [sys.executable, "-P", "-m", "flowdist.runtime.agent.guardian", json.dumps(config)]
        event_ns = boot_ns()
        with (self.folder / f"node{number}.txt").open("wb") as output:
            held = [config["lifeline"], config["lock"]]
            guardian = subprocess.Popen(
                command, env=self.env, pass_fds=held, stdout=output, stderr=output, start_new_session=True
            )
        for fd in held:
            os.close(fd)
        self._added.append(guardian.pid)
        return event_ns

    def is_over(self) -> bool:
        return self._run.poll() is not None

    def journal(self) -> list[dict[str, object]]:
        """Its records, with `t_ns` on the clock of the stamps."""
        lines = (self.folder / "r/latest/journal.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [{**each, "t_ns": each["t_ns"] + self.start_ns} for each in records if each["type"] == "event"]

    def note_start(self) -> None:
        """When the journal's clock began; to be asked for while the job runs."""
        (config,) = [config for _, config in self._ours("flowdist.runtime.controller.controller_main")]
        self.start_ns = int(str(config["start_ns"]))

    def _guardians(self) -> dict[str, tuple[int, dict[str, object]]]:
        found = self._ours("flowdist.runtime.agent.guardian")
        mine = [(pid, config) for pid, config in found if parent_of(pid) == self._run.pid]
        return {config["node"]["name"]: (pid, config) for pid, config in mine}  # type: ignore[index]

    def _ours(self, module: str) -> list[tuple[int, dict[str, object]]]:
        found = []
        for pid in descendants(self._run.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if module in words and parent_of(pid) == self._run.pid:
                    found.append((pid, json.loads(words[words.index(module) + 1])))
        return found


def own_descendants() -> None:
    """Whatever this process starts, directly or not, is its own to kill; a signal that ends it lets it do so."""
    become_subreaper()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def are_many(stamps: list[Stamp], workers: int) -> bool:
    """Whether so many ranks have each done some steps at full size."""
    steps = [stamp.rank for stamp in stamps if stamp.word == "step" and stamp.size == workers]
    return all(steps.count(rank) >= STEPS for rank in range(workers))


def steps_after(stamps: list[Stamp], event_ns: int, size: int) -> dict[int, dict[str, int]]:
    """By rank, the first time of each word in a generation of this size that was made after the event.

    Only ranks that have completed a step. A process that outlives the event has stamped its new group before it.
    """
    found: dict[int, dict[str, int]] = {}
    last: dict[int, dict[str, int]] = {}  # by process: what it came to before its present group
    for stamp in sorted(stamps, key=lambda stamp: stamp.t_ns):
        if stamp.t_ns < event_ns or stamp.size != size:
            continue
        if stamp.word != "step":
            last.setdefault(stamp.pid, {})[stamp.word] = stamp.t_ns
        elif stamp.pid in last:
            found[stamp.rank] = {**last.pop(stamp.pid), "step": stamp.t_ns}
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, as a scheduler ends a job; what is left after a minute is killed."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        end_all()


def end_all() -> None:
    """Of a job, at whatever point it is."""
    left = kill_descendants()
    if left:
        raise SystemExit(f"these processes outlive SIGKILL: {left}")


def hit(pids: list[int], number: int) -> int:
    event_ns = boot_ns()
    for pid in pids:
        os.kill(pid, number)
    return event_ns


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def until_listening(port: int, patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(LOOK_S)
    raise SystemExit("torchrun's store never came up")
