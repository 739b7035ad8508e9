"""What a controller costs with many hosts: scripted hosts join over TCP, one falls silent, and the job re-forms.

    python benchmarks/many_hosts.py [--hosts 10 100 1000] [--token without with] [--repeats 3] [--progress]
        [--json] [--write-docs]

The controller is a real process, alone with its journal. The hosts are a few lines of this file in two other processes:
they speak the project's own frames over connections of their own, from an address each, send heartbeats, and obey every
order at once. No worker runs. Each host has two connections, as a real one has: one of its foreground process, and one
of its agent. All hosts are started at once. When they have formed a world, only heartbeats go to and fro for a while.
Then the last host falls silent, is lost at the end of its lease, and the others form a world without it.

* An acknowledgement is the answer to a heartbeat, from the time when the host has sent it. The first pair of numbers is
  while only heartbeats are sent, the second for the time from the silence to the last start of the new world.
* With a token, every connection proves it, and is encrypted (TLS), as between real hosts. Both are measured.
* CPU time is that of the controller process. Its share of a core is that while only heartbeats are sent, and the
  largest of all phases. `growth` is the CPU time of a host at a size in terms of the size before: 1 is none. The
  hosts' own CPU time, which real hosts spend elsewhere, is that of the two processes that play them, while they join:
  an asyncio client with TLS costs as much as the controller, and the cores are shared.
* "Memory" is the largest of the controller process.
* "Re-formed" counts from the end of the lease, to the last report that a replica has started.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from sections import write_section

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import unnamed_nodes
from flowdist.control.protocol.messages import Acked, Dismissed, Heartbeat, Join, Ordered, Rejoin, Report
from flowdist.graph import (
    SECOND,
    Cluster,
    JobOptions,
    NodeSpec,
    Placement,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    encode_graph,
)
from flowdist.record.journal import Line, Record
from flowdist.record.reader import RecordReader
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.controller.controller_process import ControllerConfig
from flowdist.runtime.controller.host_registry import Listening
from flowdist.runtime.run_folder.resume import RunEndpoint
from flowdist.runtime.wire.addresses import open_doors
from flowdist.runtime.wire.endpoint import ControllerEndpoint, keep_alive
from flowdist.runtime.wire.frames import JoinRequest, JournalLine, Watch, Welcome, encode, read_from_controller
from flowdist.runtime.wire.framing import read_frame
from flowdist.runtime.wire.handshake import FROM_SERVER, TOKEN, ClientHandshake, ConnectionRejected, Credentials
from flowdist.runtime.wire.tls import client_context, encrypt

JOB, RUN, SECRET = "many", "many-hosts", "hush"
RETRY_S = 0.2  # as flowdist join does
IDLE_S = 4.0  # heartbeats alone are measured for so long
PATIENCE_S = 120.0
ACK_BYTES = len(encode(Acked(1, 1, 1 << 45)))
CONTEXT = functools.cache(client_context)  # real hosts make one each, on cores of their own
PROFILED = """
import cProfile, time
from flowdist.runtime.controller.controller_main import main
profile = cProfile.Profile(time.process_time)  # other processes take time, too
try:
    profile.runcall(main)
finally:
    profile.dump_stats({!r})
"""


class Lost(Exception):
    """What was waited for did not come."""


@dataclass
class Heard:
    """What the hosts of one process have seen, with times of the clock that all processes share, in seconds."""

    acks: list[tuple[float, float]] = field(
        default_factory=list
    )  # when a heartbeat was sent, and how long its answer took
    received: list[tuple[float, int]] = field(default_factory=list)  # when a frame has come, and its bytes
    rejoins: int = 0  # leases that ran out although the host sends heartbeats


class ScriptedHost:
    """One host: it joins, and obeys every order at once, until the job is over or `silence` is set.

    Args:
        number: Of the host, from 0 on; its address and its name follow from it.
        controller: Where the controller listens.
        token: The secret of the job; empty: none, and no TLS.
        heard: Gets what this host sees.
        progress: Report a step with each heartbeat.
    """

    def __init__(self, number: int, controller: ControllerEndpoint, token: str, heard: Heard, progress: bool) -> None:
        self._name, self._controller, self._heard, self._progress = f"gpu{number:04}", controller, heard, progress
        self._address = f"127.1.{number // 250}.{number % 250 + 1}"
        self._credentials = Credentials(token, "", f"the secret of {self._name}")
        self._running: dict[str, StartReplica] = {}
        self._step = 0
        self._answered_ns = 0
        self.silence = asyncio.Event()

    async def run(self) -> None:
        welcome, reader, writer = await self._enter()
        foreground = asyncio.create_task(self._read_news(reader))
        self._credentials = self._credentials._replace(node=welcome.node)
        agent_reader, agent_writer = await self._connect_until_accepted()
        spec = NodeSpec(welcome.node, cpu=1)
        node, incarnation = welcome.node, welcome.incarnation
        agent_writer.write(encode(Join(node, incarnation, spec, self._address, boot_ns())))
        beats = asyncio.create_task(self._beat(node, incarnation, agent_writer))
        try:
            await self._obey(agent_reader, agent_writer, node, incarnation)
        finally:
            beats.cancel()
            foreground.cancel()
            agent_writer.close()
            writer.close()

    async def _enter(self) -> tuple[Welcome, asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect until the controller has welcomed this host."""
        while True:
            reader, writer = await self._connect_until_accepted()
            writer.write(encode(JoinRequest(self._name)))
            if isinstance(answer := await read_from_controller(reader), Welcome):
                return answer, reader, writer
            writer.close()
            await asyncio.sleep(RETRY_S)

    async def _connect_until_accepted(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect again and again: of many hosts at once, a controller lets a few in at a time."""
        while True:
            try:
                return await self._connect()
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = (self._controller.host, self._controller.port)
        reader, writer = await asyncio.open_connection(*place, local_addr=(self._address, 0))
        keep_alive(writer.get_extra_info("socket"))
        client = ClientHandshake(self._controller.job, "", self._credentials)
        try:
            writer.write(encode(client.hello))
            proof = client.answer(FROM_SERVER.decode(await read_frame(reader) or b""))
            if client.certificate:
                await encrypt(writer, CONTEXT(client.certificate))
            writer.write(encode(proof))
            client.finish(FROM_SERVER.decode(await read_frame(reader) or b""))
        except (msgspec.MsgspecError, ConnectionRejected) as error:
            writer.close()
            raise ConnectionResetError(str(error)) from None
        return reader, writer

    async def _read_news(self, reader: asyncio.StreamReader) -> None:
        while (body := await read_frame(reader)) is not None:
            self._heard.received.append((boot_ns() / 1e9, len(body)))

    async def _beat(self, node: str, incarnation: int, writer: asyncio.StreamWriter) -> None:
        while not self.silence.is_set():
            await asyncio.sleep(JobOptions().heartbeat_ns / 1e9)
            if self.silence.is_set():
                return
            writer.write(encode(Heartbeat(node, incarnation, boot_ns(), self._answered_ns)))
            self._step += 1
            for start in self._running.values() if self._progress else ():
                event = ev.ReplicaProgressed(start.replica, start.attempt, self._step)
                writer.write(encode(Report(node, incarnation, event)))

    async def _obey(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str, incarnation: int
    ) -> None:
        while (message := await read_from_controller(reader)) is not None:
            now = boot_ns()
            match message:
                case Acked():
                    self._answered_ns = message.at_ns
                    self._heard.acks.append((message.sent_ns / 1e9, (now - message.sent_ns) / 1e9))
                    self._heard.received.append((now / 1e9, ACK_BYTES))
                case Ordered():
                    self._heard.received.append((now / 1e9, len(encode(message))))
                    event = self._answer(message.order)
                    if event is not None and not self.silence.is_set():
                        writer.write(encode(Report(node, incarnation, event)))
                case Rejoin():
                    self._heard.rejoins += 1
                case Dismissed():
                    return

    def _answer(self, order: object) -> Any:
        match order:
            case OpenStore():
                return ev.StoreOpened(order.world, order.generation, 29500)
            case StartReplica():
                self._running[str(order.replica)] = order
                return ev.ReplicaStarted(order.replica, order.attempt)
            case StopReplica():
                self._running.pop(str(order.replica), None)
                return ev.ReplicaStopped(order.replica, order.attempt)
        return None


def play(numbers: range, controller: ControllerEndpoint, token: str, progress: bool, pipe: Pipe) -> None:
    """Play some hosts in this process, until the controller dismisses them or the pipe ends.

    The pipe brings the number of a host that is to fall silent, or -1 for the end; then it gets what was heard.
    """
    heard = Heard()
    os.setsid()  # as for the controller

    async def scene() -> None:
        hosts = {number: ScriptedHost(number, controller, token, heard, progress) for number in numbers}
        tasks = [asyncio.create_task(host.run()) for host in hosts.values()]
        over = asyncio.Event()

        def hear() -> None:
            number = pipe.recv()
            over.set() if number < 0 else hosts[number].silence.set()

        asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())
    pipe.send(heard)


class Controller:
    """The controller process of a run, without a supervisor, whose journal this process reads."""

    def __init__(self, folder: Path, hosts: int, token: str, profile: str = "") -> None:
        self._folder, self._hosts, self._token, self._profile = folder, hosts, token, profile
        (self._door,) = open_doors(["127.0.0.1"], 0)
        self.endpoint = ControllerEndpoint("127.0.0.1", self._door.getsockname()[1], JOB)

    def __enter__(self) -> Controller:
        (self._folder / "graph.json").write_bytes(encode_graph(job(self._hosts)))
        self._lifeline = os.pipe()
        listening = Listening(
            RunEndpoint(str(self.endpoint.address), JOB), "127.0.0.1", self.endpoint.port, self._hosts
        )
        config = ControllerConfig(
            str(self._folder), RUN, str(self._folder / "c.sock"), unnamed_nodes(1, self._hosts), boot_ns(),
            self._lifeline[0], listening=listening, doors=(self._door.fileno(),),
        )  # fmt: skip
        command = [sys.executable, "-m", "flowdist.runtime.controller.controller_main"]
        if self._profile:
            command = [sys.executable, "-c", PROFILED.format(self._profile)]
        self.process = subprocess.Popen(
            [*command, msgspec.json.encode(config).decode()],
            pass_fds=[self._lifeline[0], self._door.fileno()],
            env={**os.environ, TOKEN: self._token},
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Linux divides the processor among sessions: hosts would not share it in reality
        )
        os.close(self._lifeline[0])
        self._door.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lifeline[1])
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()

    def watch(self) -> Iterator[Line]:
        """Yield the lines of the journal as they are written, as the supervisor gets them."""
        deadline = time.monotonic() + PATIENCE_S
        path = str(self._folder / "c.sock")
        with socket.socket(socket.AF_UNIX) as link:
            while True:
                try:
                    link.connect(path)
                    break
                except OSError:
                    if time.monotonic() > deadline or self.process.poll() is not None:
                        raise Lost("the controller does not listen") from None
                    time.sleep(0.02)
            link.sendall(encode(Watch()))
            link.settimeout(PATIENCE_S)
            reader, decoder = RecordReader(), msgspec.msgpack.Decoder(JournalLine)
            with link.makefile("rb") as file:
                while length := file.read(4):
                    yield reader.read(decoder.decode(file.read(int.from_bytes(length, "big"))).line)

    def cpu_s(self) -> float:
        """Return the CPU time of the process so far, in seconds."""
        return cpu_s_of(self.process.pid)

    def memory_mb(self) -> float:
        """Return the largest resident size of the process so far, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds; it has one thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def job(hosts: int) -> RoleGraph:
    """Return a job with a gang of one replica on each host, which goes on with those that are left."""
    role = RoleSpec(
        "trainer",
        ("true",),
        min_replicas=max(1, hosts // 2),
        max_replicas=hosts,
        placement=Placement(apart=("trainer",)),
        restart=RestartPolicy("role", max_restarts=3),
        join_window_ns=60 * SECOND,
        cooldown_ns=0,
    )
    return RoleGraph("many", (role,), cluster=Cluster(()))


@dataclass
class Phase:
    """One part of a measurement: when it was, and the CPU time in it of controller and hosts, in seconds."""

    name: str
    began_s: float = 0.0
    ended_s: float = 0.0
    cpu_s: float = 0.0
    hosts_cpu_s: float = 0.0


class Measurement:
    """One job of so many hosts: it forms, idles, loses the last host, and re-forms."""

    def __init__(
        self,
        hosts: int,
        processes: int,
        *,
        token: bool = False,
        progress: bool = False,
        idle_s: float = IDLE_S,
        profile: str = "",
    ) -> None:
        self._hosts, self._progress, self._idle_s = hosts, progress, idle_s
        self._processes = min(processes, hosts)
        self._token, self._profile = SECRET if token else "", profile
        self._phases: list[Phase] = []
        self._memory_mb = 0.0

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="many-hosts-") as folder:
            with Controller(Path(folder), self._hosts, self._token, self._profile) as controller:
                lines = controller.watch()
                next(lines)
                players = [self._player(index, controller.endpoint) for index in range(self._processes)]
                try:
                    self._go_through(controller, lines, players)
                    self._memory_mb = controller.memory_mb()
                    heard = [self._end(pipe) for _, pipe in players]
                finally:
                    for process, _ in players:
                        process.kill()
                        process.join()
            journal = Path(folder, "journal.jsonl").stat().st_size
        return self._result(heard, journal)

    def _player(self, index: int, endpoint: ControllerEndpoint) -> tuple[Any, Pipe]:
        ours, theirs = multiprocessing.Pipe()
        numbers = range(index, self._hosts, self._processes)
        process = multiprocessing.Process(
            target=play, args=(numbers, endpoint, self._token, self._progress, theirs), daemon=True
        )
        process.start()
        return process, ours

    def _end(self, pipe: Pipe) -> Heard:
        pipe.send(-1)
        if not pipe.poll(PATIENCE_S):
            raise Lost("a process of hosts does not end")
        heard: Heard = pipe.recv()
        return heard

    def _go_through(self, controller: Controller, lines: Iterator[Line], players: list[tuple[Any, Pipe]]) -> None:
        pids = [process.pid for process, _ in players]
        self._phase(controller, pids, "form")
        self._until_running(lines, 1, self._hosts)
        self._phase(controller, pids, "idle")
        until = time.monotonic() + self._idle_s
        while self._progress and time.monotonic() < until:
            next(lines)
        time.sleep(max(0.0, until - time.monotonic()))
        self._phase(controller, pids, "fall silent")
        silent = self._hosts - 1
        players[silent % self._processes][1].send(silent)
        self._until(lines, ev.NodeSilent)
        self._phase(controller, pids, "re-form")
        self._until_running(lines, 2, self._hosts - 1)
        self._phase(controller, pids, "")

    def _phase(self, controller: Controller, players: list[int], name: str) -> None:
        """End the present phase, and begin the next one; empty: none. `players` are the processes of the hosts."""
        now, cpu_s, hosts_cpu_s = boot_ns() / 1e9, controller.cpu_s(), sum(cpu_s_of(pid) for pid in players)
        if self._phases:
            last = self._phases[-1]
            last.ended_s, last.cpu_s, last.hosts_cpu_s = now, cpu_s - last.cpu_s, hosts_cpu_s - last.hosts_cpu_s
        if name:
            self._phases.append(Phase(name, now, cpu_s=cpu_s, hosts_cpu_s=hosts_cpu_s))

    def _until(self, lines: Iterator[Line], kind: type) -> None:
        if not any(isinstance(line, Record) and isinstance(line.event, kind) for line in lines):
            raise Lost(kind.__name__)

    def _until_running(self, lines: Iterator[Line], generation: int, count: int) -> None:
        """Read until so many replicas of a generation have started."""
        attempts: dict[Any, int] = {}
        for line in lines:
            if not isinstance(line, Record):
                continue
            for effect in line.effects:
                if isinstance(effect, StartReplica) and effect.generation == generation:
                    attempts[effect.replica] = effect.attempt
            if isinstance(line.event, ev.ReplicaStarted) and attempts.get(line.event.replica) == line.event.attempt:
                count -= 1
                if not count:
                    return
        raise Lost(f"generation {generation}")

    def _result(self, heard: list[Heard], journal: int) -> dict[str, Any]:
        phases = {phase.name: self._part([phase], heard) for phase in self._phases}
        whole = self._part(self._phases, heard)
        return {
            "hosts": self._hosts,
            "token": bool(self._token),
            "memory_mb": self._memory_mb,
            "us_per_heartbeat": 1e6 * phases["idle"]["cpu_s"] / max(1, phases["idle"]["acks"]),
            "formed_s": phases["form"]["s"],
            "re_formed_s": phases["re-form"]["s"],
            "cpu_ms_per_host": whole["cpu_ms_per_host"],
            "cores_max": max(part["cores"] for part in phases.values()),
            "loss": self._part(self._phases[2:], heard),
            "bytes_per_host": whole["bytes_per_host"],
            "journal_bytes": journal,
            "rejoins": sum(each.rejoins for each in heard),
            **phases,
        }

    def _part(self, phases: list[Phase], heard: list[Heard]) -> dict[str, float]:
        """Return the numbers of phases that follow one another."""
        began_s, ended_s = phases[0].began_s, phases[-1].ended_s
        cpu_s = sum(phase.cpu_s for phase in phases)
        acks = sorted(late for each in heard for sent, late in each.acks if began_s <= sent < ended_s)
        received = sum(size for each in heard for at, size in each.received if began_s <= at < ended_s)
        return {
            "s": ended_s - began_s,
            "cpu_s": cpu_s,
            "hosts_cpu_s": sum(phase.hosts_cpu_s for phase in phases),
            "cores": cpu_s / (ended_s - began_s),
            "cpu_ms_per_host": 1e3 * cpu_s / self._hosts,
            "acks": len(acks),
            "ack_p50_ms": 1e3 * quantile(acks, 0.5),
            "ack_p99_ms": 1e3 * quantile(acks, 0.99),
            "bytes_per_host": received / self._hosts,
        }


def quantile(values: list[float], share: float) -> float:
    """Return the value below which that share of the sorted values is; 0 without values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def median_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of which the CPU time is the median."""
    return sorted(results, key=lambda result: result["cpu_ms_per_host"])[len(results) // 2]


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table for evidence/benchmarks.md."""
    lines = [
        "| hosts | token | formed after | re-formed after | acknowledgements p50, p99 | ... while one is lost "
        "| controller, cores | memory | CPU per heartbeat | CPU per host | growth | hosts' own, to join "
        "| bytes to a host |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        lines.append(
            f"| {each['hosts']:,} | {'yes' if each['token'] else 'no'} | {each['formed_s']:.2f} s | "
            f"{each['re_formed_s']:.2f} s | {_times(each['idle'])} | {_times(each['loss'])} | "
            f"{each['idle']['cores']:.2f}, at most {each['cores_max']:.2f} | {each['memory_mb']:.0f} MB | "
            f"{each['us_per_heartbeat']:.0f} us | {each['cpu_ms_per_host']:.2f} ms | {each['growth']:.2f} | "
            f"{1e3 * each['form']['hosts_cpu_s'] / each['hosts']:.2f} ms | {each['bytes_per_host']:,.0f} |"
        )
    return "\n".join(lines)


def short_table(results: list[dict[str, Any]]) -> str:
    """Return what users of many hosts want to know, as a table for docs/hosts.md: a row for each question."""
    results = [each for each in results if each["hosts"] >= 100]
    sizes = [f"{each['hosts']:,}{', token' if each['token'] else ''}" for each in results]
    rows = {
        "all are started at once: the job forms after": [f"{each['formed_s']:.2g} s" for each in results],
        "one is lost: the others re-form after its lease, in": [f"{each['re_formed_s']:.2g} s" for each in results],
        "heartbeats are answered in (half, 99 %)": [_times(each["idle"]) for each in results],
        "memory of the controller": [f"{each['memory_mb']:.0f} MB" for each in results],
        "sent to each host": [f"{each['bytes_per_host'] / 1e3:.1f} kB" for each in results],
    }
    lines = [f"| scripted hosts, on two cores | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()])


def _times(part: dict[str, float]) -> str:
    """Return the times of the acknowledgements for people; a short phase may have none."""
    return f"{part['ack_p50_ms']:.0f} ms, {part['ack_p99_ms']:.0f} ms" if part["acks"] else "-"


def main() -> None:
    """Measure the sizes that the command line names, print a table, and exit with 1 if a host's lease ran out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--processes", type=int, default=2, help="processes that play the hosts")
    parser.add_argument(
        "--repeats", type=int, default=1, help="jobs of each size; the one with the median CPU time counts"
    )
    parser.add_argument("--progress", action="store_true", help="each host reports a step with each heartbeat")
    parser.add_argument(
        "--token", choices=("without", "with"), nargs="+", default=["without", "with"], help="without, with, or both"
    )
    parser.add_argument("--profile", default="", help="file for the profile (cProfile) of the last controller")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--write-docs", action="store_true", help="put the tables into evidence/benchmarks.md and docs/hosts.md"
    )
    options = parser.parse_args()
    how = {"progress": options.progress, "profile": options.profile}
    results: list[dict[str, Any]] = []
    for word in options.token:
        before: dict[str, Any] = {}  # the size before
        for hosts in options.hosts:
            repeats = [
                Measurement(hosts, options.processes, token=word == "with", **how).run() for _ in range(options.repeats)
            ]
            result = median_of(repeats)
            result["growth"] = result["cpu_ms_per_host"] / (before or result)["cpu_ms_per_host"]
            results.append(before := result)
    print(json.dumps(results) if options.json else table(results))
    if options.write_docs:
        write_section("many hosts", table(results))
        write_section("many hosts", short_table(results), "docs/hosts.md")
    sys.exit(any(result["rejoins"] for result in results))


if __name__ == "__main__":
    main()
