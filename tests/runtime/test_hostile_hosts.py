"""A hostile host tries all that it can, with the token and without: the controller stays small, the job goes on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Join, Leave, Report
from flowdist.graph import NodeSpec
from flowdist.runtime.controller.limits import FRAME_MAX
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import JoinRequest, Place, RemoteErrorReport, Watch
from flowdist.runtime.wire.framing import encode
from flowdist.runtime.wire.handshake import FRAME_MAX as FRAME_BEFORE_PROOF
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials
from tests.runtime.far_host import FarHost
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts

pytestmark = pytest.mark.real

GROWTH_MAX = 64 << 20
TOKEN, ADDRESS = "hush", "127.0.0.7"  # of the hostile host
WAIT = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("end"):
    time.sleep(0.02)
"""
TOPOLOGY = """
from flowdist import Topology

t = Topology("hosts", nodes="1:9")
t.role("trainer", "python train.py", replicas="1:2", apart=True, join_window="0s", cooldown="0s")
"""
R = ReplicaId("trainer", 0)


class Attacker:
    """Connections that stay open until the end of the block, whatever becomes of them."""

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.split(":")
        self.controller = ControllerEndpoint(host, int(port), "flowdist")
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def without_token(self, data: bytes) -> None:
        """Open a connection and send some bytes over it."""
        with contextlib.suppress(OSError):
            place = (self.controller.host, self.controller.port)
            connection = self._open.enter_context(socket.create_connection(place, 10, (ADDRESS, 0)))
            connection.sendall(data)

    def joined(self, credentials: Credentials, name: str = "evil") -> FarHost | None:
        """Open a connection and ask for a node, or for the node of the credentials; None if that is refused."""
        host = self.of_node(credentials)
        with contextlib.suppress(OSError, AssertionError, ValueError):
            if host is not None:
                host.ask(name)
                return host
        return None

    def of_node(self, credentials: Credentials) -> FarHost | None:
        """Open one more connection of a node; None if the controller closes it."""
        with contextlib.suppress(OSError, ValueError, ConnectionRejected):
            host = FarHost(self.controller, credentials, ADDRESS)
            self._open.callback(host.close)
            return host
        return None


def pour(host: FarHost | None, data: bytes) -> None:
    """Send as much of the data as the controller takes."""
    if host is not None:
        with contextlib.suppress(OSError):
            host.connection.settimeout(3)
            host.connection.sendall(data)


def say_nothing(attacker: Attacker, _: FarHost) -> None:
    for _ in range(400):
        attacker.without_token(b"")


def send_junk(attacker: Attacker, _: FarHost) -> None:
    for number in range(300):
        attacker.without_token(
            (b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x08" + b"\xc1" * 8)[number % 3]
        )


def begin_frames_without_a_token(attacker: Attacker, _: FarHost) -> None:
    for _ in range(400):
        attacker.without_token(FRAME_BEFORE_PROOF.to_bytes(4, "big") + bytes(FRAME_BEFORE_PROOF - 1))


def begin_frames_of_60_mib(attacker: Attacker, host: FarHost) -> None:
    for _ in range(20):
        pour(attacker.of_node(host.credentials), (60 << 20).to_bytes(4, "big") + bytes(1 << 20))


def begin_frames(attacker: Attacker, host: FarHost) -> None:
    for _ in range(40):
        pour(attacker.of_node(host.credentials), FRAME_MAX.to_bytes(4, "big") + bytes(FRAME_MAX - 1))


def watch_again_and_again(attacker: Attacker, host: FarHost) -> None:
    frame = encode(Watch())
    pour(attacker.of_node(host.credentials), frame * (620_000 // len(frame)))


def ask_for_news_on_many_connections_without_reading(attacker: Attacker, host: FarHost) -> None:
    request = encode(JoinRequest("evil", Place(1 << 60, "x" * 1000))) + encode(JoinRequest("evil", shows_progress=True))
    for _ in range(40):
        pour(attacker.of_node(host.credentials), request)


def ask_without_reading(attacker: Attacker, host: FarHost) -> None:
    pour(attacker.of_node(host.credentials), encode(JoinRequest("evil")) * 50_000)


def take_many_names(attacker: Attacker, _: FarHost) -> None:
    for number in range(50):
        host = attacker.joined(Credentials(TOKEN, "", f"secret {number}"), f"evil-{number}")
        if host is not None:
            labels = tuple((f"\N{GRINNING FACE}{each:0255}",) * 2 for each in range(64))
            spec = NodeSpec(host.node, cpu=0, gpu=100, labels=labels)
            pour(host, encode(Join(host.node, host.incarnation, spec, "127.0.0.1", 0)))


def join_again_and_again(attacker: Attacker, host: FarHost) -> None:
    """With inventories and lists that are as long as a frame, and with new incarnations."""
    bad = tuple((number % 100, "z") for number in range(100_000))
    items = (ev.InventoryItem(R, 1, "running", (("", 1),) * 150_000),)
    spec = NodeSpec(host.node, cpu=0, gpu=100)
    frames = []
    for number in range(3000):
        join = Join(host.node, host.incarnation + number // 3, spec, "127.0.0.1", 0)
        frames.append(encode(join))
        if number % 3 == 0:
            frames.append(encode(Leave(host.node, host.incarnation + number // 3)))
    frames.append(encode(Join(host.node, host.incarnation + 999, spec, "127.0.0.1", 0, bad_gpus=bad)))
    frames.append(encode(Join(host.node, host.incarnation + 999, spec, "127.0.0.1", 0, items)))
    pour(attacker.of_node(host.credentials), b"".join(frames))


def report_long_texts(attacker: Attacker, host: FarHost) -> None:
    text, n = "\N{GRINNING FACE}" + "x" * (500 << 10), 1 << 30  # Python takes 4 bytes for each character
    pour(
        attacker.of_node(host.credentials),
        encode(Join(host.node, n, NodeSpec(host.node, cpu=0, gpu=100), "127.0.0.1", 0)),
    )
    for number in range(40):
        pour(attacker.of_node(host.credentials), encode(Report(host.node, n, ev.GpuFailed(host.node, number, text))))


def report_errors(attacker: Attacker, host: FarHost) -> None:
    frame = encode(RemoteErrorReport(host.node, R, 1, 0, "e" * (250 << 10), "f" * (60 << 10)))
    pour(attacker.of_node(host.credentials), frame * 200)


def report_progress_without_end(attacker: Attacker, host: FarHost) -> None:
    frame = encode(Report(host.node, 1 << 30, ev.NodeWarm(host.node)))
    pour(attacker.of_node(host.credentials), frame * 15_000)


ATTACKS: tuple[Callable[[Attacker, FarHost], None], ...] = (
    say_nothing,
    send_junk,
    begin_frames_without_a_token,
    begin_frames_of_60_mib,
    begin_frames,
    watch_again_and_again,
    ask_for_news_on_many_connections_without_reading,
    ask_without_reading,
    take_many_names,
    join_again_and_again,
    report_long_texts,
    report_errors,
    report_progress_without_end,
)


def memory(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status, in bytes: VmRSS is the present memory, VmHWM the largest so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))


def controller_of(job: Job) -> int:
    return job.named("flowdist.runtime.controller.controller_main")[0]


@pytest.mark.timeout(240)  # a dozen attacks, each of some seconds
@pytest.mark.slow
def test_the_controller_grows_by_less_than_64_mb_whatever_hosts_send_and_the_job_finishes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAIT)
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    grown = {}
    with Hosts(tmp_path) as hosts:
        words = [str(tmp_path / "topology.py"), "--listen", hosts.endpoint]
        first = hosts.start(1, "run", *words, env={"FLOWDIST_TOKEN": TOKEN})
        first.until("rank 0 of 1")
        controller = controller_of(first)
        before = memory(controller, "VmRSS")
        credentials = Credentials(TOKEN, "", "the secret of the hostile host")
        for attack in ATTACKS:
            with Attacker(hosts.endpoint) as attacker:
                evil = attacker.joined(credentials)
                assert evil is not None, attack.__name__
                credentials = evil.credentials
                attack(attacker, evil)
            grown[attack.__name__] = (memory(controller, "VmHWM") - before) >> 20
        print(grown)
        second = hosts.start(2, "join", hosts.endpoint, env={"FLOWDIST_TOKEN": TOKEN})
        second.until("rank 1 of 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
    assert memory_is_small(grown), grown
    log = (first.run_dir / "controller.log").read_text()
    assert "Traceback" not in log and len(log) < 100_000, log[:5000]


def memory_is_small(grown: dict[str, int]) -> bool:
    return max(grown.values()) < GROWTH_MAX >> 20
