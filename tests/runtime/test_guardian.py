"""Guardian: the cause that it reports when its agent and its spawner end, in any order."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
        pytest.param("signal.pause()", "", "", id="the agent ends in order"),
        pytest.param("", IS_REAPED, "", id="the spawner is seen to end before the agent that has ended in order"),
        pytest.param("", IS_REAPED + "os._exit(1)", "its agent died", id="an agent that has no spawner ends"),
        pytest.param("signal.pause()", "os._exit(1)", "its agent died", id="the agent dies"),
        pytest.param("", "signal.pause()", "its agent died", id="the agent does not end"),
    ],
)
def test_only_the_exit_of_the_agent_determines_the_cause(spawner: str, agent: str, cause: str) -> None:
    patience_s = "0.1" if agent == "signal.pause()" else "60"
    command = [sys.executable, "-c", GUARDIAN, spawner, agent, patience_s]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (run.stdout, run.stderr) == (f"{cause!r}\n", "")
