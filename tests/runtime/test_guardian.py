"""Guardian: the cause that it reports when its agent and its spawner end, in any order."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from flowdist import Topology
from flowdist.graph import NodeSpec, encode_graph
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.wire.endpoint import ControllerEndpoint, DeathProof
from flowdist.runtime.wire.frames import TO_CONTROLLER
from flowdist.runtime.wire.framing import encode, receive_frame
from flowdist.runtime.wire.handshake import FROM_CLIENT, ServerHandshake
from flowdist.testing import graph_of
from tests.runtime.harness import children

pytestmark = pytest.mark.real

# `spawner` and `agent` are code that they run; the agent knows the spawner by its pid.
GUARDIAN = """
import os, select, signal, sys, time
from flowdist.runtime.agent import guardian

def fork(code):
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        exec(code)
        os._exit(0)
    return pid

guardian.EXIT_WAIT_S = float(sys.argv[3])
wake, wake_write = os.pipe()
os.set_blocking(wake_write, False)
signal.set_wakeup_fd(wake_write)
signal.signal(signal.SIGCHLD, lambda *_: None)
lifeline, _ = os.pipe()
spawner = fork(sys.argv[1])
agent = fork(sys.argv[2])
lease = guardian.LeaseWatch(guardian.LeasePage(), os.getpid(), agent)
print(repr(guardian._watch(lifeline, wake, agent, spawner, lease)))
guardian.kill_descendants()
"""
IS_REAPED = """
while True:
    try:
        os.kill(spawner, 0)
    except ProcessLookupError:
        break
    time.sleep(0.001)
"""


@pytest.mark.parametrize(
    ("spawner", "agent", "cause"),
    [
        pytest.param("signal.pause()", "", None, id="the agent ends in order"),
        pytest.param("signal.pause()", "os._exit(2)", "", id="the agent leaves while no controller is connected"),
        pytest.param("", IS_REAPED, None, id="the spawner is seen to end before the agent that has ended in order"),
        pytest.param("", IS_REAPED + "os._exit(1)", "its agent died", id="an agent that has no spawner ends"),
        pytest.param("signal.pause()", "os._exit(1)", "its agent died", id="the agent dies"),
        pytest.param("", "signal.pause()", "its agent died", id="the agent does not end"),
    ],
)
def test_only_the_exit_of_the_agent_determines_the_cause(spawner: str, agent: str, cause: str | None) -> None:
    patience_s = "0.1" if agent == "signal.pause()" else "60"
    command = [sys.executable, "-c", GUARDIAN, spawner, agent, patience_s]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (run.stdout, run.stderr) == (f"{cause!r}\n", "")


def test_a_guardian_tells_the_next_controller_that_its_node_left_if_the_agent_could_not(tmp_path: Path) -> None:
    t = Topology("alone")
    t.role("trainer", "true")
    (tmp_path / "graph.json").write_bytes(encode_graph(graph_of(t)))
    lifeline, supervisor = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as door, (tmp_path / "lock").open("w") as lock:
        door.settimeout(60)
        controller = ControllerEndpoint("127.0.0.1", door.getsockname()[1], "job1", "run-1")
        folder, fds = str(tmp_path), (lifeline, lock.fileno())
        config = NodeConfig(NodeSpec("node0"), 0, 1, folder, "run-1", "", folder, *fds, controller=controller)
        command = [sys.executable, "-m", "flowdist.runtime.agent.guardian", msgspec.json.encode(config).decode()]
        with subprocess.Popen(command, pass_fds=fds) as guardian, os.fdopen(supervisor, "w"):
            unanswered, _ = door.accept()
            _spawner, agent = children(guardian.pid)
            os.kill(agent, signal.SIGTERM)
            assert select.select([door, os.pidfd_open(guardian.pid)], [], [], 60)[0] == [door]
            call, _ = door.accept()
            with unanswered, call:
                handshake = ServerHandshake("job1", "run-1", "")
                for answer_to in (handshake.challenge, handshake.verify):
                    call.sendall(encode(answer_to(FROM_CLIENT.decode(receive_frame(call) or b""))))
                assert TO_CONTROLLER.decode(receive_frame(call) or b"") == DeathProof("node0", 1000, "")
        assert guardian.returncode == 0
