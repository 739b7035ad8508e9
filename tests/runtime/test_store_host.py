"""The store template of a node ends without an error when its agent is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.runtime.harness import Deaths, children

pytestmark = pytest.mark.real


@pytest.mark.slow
def test_the_end_of_a_store_is_not_reported_after_the_end_of_the_agent() -> None:
    distributed = pytest.importorskip("torch.distributed")
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "flowdist.runtime.stores.store_host", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
    theirs.close()
    with ours, socket.create_server(("127.0.0.1", 0)) as listening:
        request = {"key": "trainer 1", "host": "127.0.0.1", "port": listening.getsockname()[1]}
        socket.send_fds(ours, [json.dumps(request).encode() + b"\n"], [listening.fileno()])
        distributed.TCPStore("127.0.0.1", request["port"], is_master=False)  # waits until it is served
        hosts = children(process.pid)
        os.kill(process.pid, signal.SIGSTOP)  # it sees both at once
        with Deaths(hosts) as deaths:
            os.kill(hosts[0], signal.SIGKILL)
            assert deaths.survivors() == []
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
