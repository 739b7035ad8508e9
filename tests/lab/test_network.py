"""The lab itself: names, faults one by one, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.network import Lab
from tests.lab.processes import processes_in, wait_for_ends

pytestmark = [pytest.mark.real, pytest.mark.lab]

# Answers each datagram with the same datagram.
ECHO = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", 7007))
print("up", flush=True)
while True:
    link.sendto(*link.recvfrom(100))
"""
# Sends COUNT datagrams to HOST, one by one, and prints for each how many seconds its answer took, or `lost`.
ASK = """
import socket, sys, time
host, count, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for number in range(count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(patience)
        began = time.monotonic()
        try:
            link.sendto(b"%d" % number, (host, 7007))
            assert link.recv(100) == b"%d" % number
            print(time.monotonic() - began)
        except TimeoutError:
            print("lost")
        except OSError as error:
            print(error.strerror)
"""
# Sends the bytes of 20 MB over TCP to itself on another host, in segments larger than a frame; prints how many arrived.
TAKE = """
import socket, sys
with socket.create_server(("", 7008)) as server:
    print("up", flush=True)
    link, _ = server.accept()
    print(sum(len(data) for data in iter(lambda: link.recv(1 << 20), b"")), flush=True)
"""
GIVE = "import socket, sys; socket.create_connection((sys.argv[1], 7008)).sendall(bytes(20_000_000))"


def serve(lab: Lab, host: str, program: str = ECHO) -> subprocess.Popen[str]:
    server = subprocess.Popen([*lab.on(host), sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdout.readline() == "up\n"
    return server


def ask(lab: Lab, source: str, target: str, count: int = 1, patience_s: float = 0.5) -> list[str]:
    """Return for each question how long its answer took, `lost`, or the error."""
    done = lab.run(source, sys.executable, "-c", ASK, target, str(count), str(patience_s))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def arrives(lab: Lab, source: str, target: str) -> bool:
    return ask(lab, source, target) != ["lost"]


@pytest.mark.parametrize("rootless", [False, True])
def test_each_host_has_its_name_and_address_and_nothing_outside_changes(make_lab: MakeLab, rootless: bool) -> None:
    if not rootless and os.geteuid() != 0:
        pytest.skip("this is not root")
    before = (socket.gethostname(), Path("/etc/hosts").read_text(), socket.if_nameindex())
    lab = make_lab("alpha", "beta", rootless=rootless)
    with serve(lab, "beta") as echo:
        words = lab.run("alpha", "sh", "-c", "hostname; getent hosts beta | tr -s ' '; pwd", cwd=lab.folder / "alpha")
        assert words.stdout.splitlines() == ["alpha", "10.77.0.2 beta", str(lab.folder / "alpha")]
        assert arrives(lab, "alpha", "beta") and not arrives(lab, "alpha", "alpha")
        assert echo.pid in lab.hosts["beta"].processes, "a command runs as the process that was started"
        echo.kill()
    assert before == (socket.gethostname(), Path("/etc/hosts").read_text(), socket.if_nameindex())


def test_partitions_of_both_directions_and_of_one(lab: Lab) -> None:
    with serve(lab, "h1") as echo, serve(lab, "h2") as other:
        lab.partition("h0", "h1")
        assert not arrives(lab, "h0", "h1") and arrives(lab, "h0", "h2") and arrives(lab, "h2", "h1")
        lab.heal()
        assert arrives(lab, "h0", "h1")
        lab.cut("h1", "h0")  # the question arrives, the answer does not
        assert not arrives(lab, "h0", "h1")
        lab.heal()
        lab.isolate("h2")
        assert not arrives(lab, "h0", "h2") and not arrives(lab, "h2", "h1") and arrives(lab, "h0", "h1")
        echo.kill()
        other.kill()


def test_frames_are_late_or_lost_as_ordered(lab: Lab) -> None:
    with serve(lab, "h1") as echo:
        lab.delay("h1", 0.03)
        lab.delay("h0", 0.01)
        assert all(float(took) >= 0.08 for took in ask(lab, "h0", "h1", 5, 20.0))
        lab.heal()
        assert arrives(lab, "h0", "h1")
        lab.lose("h1", 0.4)  # 64 % of the questions have no answer; fewer than 10 of 40 lost would be one in 10**6 runs
        assert 10 < ask(lab, "h0", "h1", 40, 0.02).count("lost") < 39
        echo.kill()


def test_a_port_that_is_down_is_silence_and_a_link_that_is_down_is_an_error(lab: Lab) -> None:
    with serve(lab, "h1") as echo:
        assert arrives(lab, "h0", "h1")
        lab.port_down("h0")
        assert ask(lab, "h0", "h1") == ["lost"]
        lab.port_up("h0")
        lab.link_down("h0")
        assert ask(lab, "h0", "h1") == ["Network is unreachable"]
        lab.link_up("h0")
        assert arrives(lab, "h0", "h1")
        echo.kill()


def test_a_host_without_power_has_no_processes_and_is_silent_and_can_start_again(lab: Lab) -> None:
    with serve(lab, "h1") as echo, serve(lab, "h2") as other:
        lab.power_off("h1")
        assert lab.hosts["h1"].processes == [] and echo.wait() == -signal.SIGKILL
        assert ask(lab, "h0", "h1") == ["lost"] and arrives(lab, "h0", "h2"), "no host answers for it"
        lab.power_on("h1")
        with serve(lab, "h1") as again:
            assert arrives(lab, "h0", "h1")
            again.kill()
        other.kill()


def test_a_frozen_host_answers_nothing_until_it_is_thawed(lab: Lab) -> None:
    with serve(lab, "h1") as echo:
        lab.freeze("h1")
        assert not arrives(lab, "h0", "h1")
        lab.thaw("h1")
        assert arrives(lab, "h0", "h1")
        echo.kill()


def test_large_segments_pass_the_switch_as_they_are(lab: Lab) -> None:
    with serve(lab, "h1", TAKE) as server:
        assert lab.run("h0", sys.executable, "-c", GIVE, "h1").returncode == 0
        assert server.stdout is not None and server.stdout.read() == "20000000\n"


def test_a_lab_whose_test_was_killed_leaves_nothing(tmp_path: Path) -> None:
    """The switch of the lab sees that its input ends, and kills what runs on the hosts."""
    program = f"""
import pathlib, subprocess, sys
from tests.lab.network import Lab, LabUnavailable
try:
    with Lab(pathlib.Path({str(tmp_path)!r})) as lab:
        subprocess.Popen([*lab.on("h1"), "sh", "-c", "trap '' TERM HUP; sleep inf"])
        print(*(host.namespace for host in lab.hosts.values()), flush=True)
        sys.stdin.read()
except LabUnavailable as error:
    print("no lab:", error)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as test:
        assert test.stdout is not None
        said = test.stdout.readline()
        if said.startswith("no lab"):
            test.kill()
            pytest.skip(said)
        namespaces = {int(word) for word in said.split()}
        assert processes_in(namespaces)
        test.kill()
    until = time.monotonic() + 20
    while (left := processes_in(namespaces)) and time.monotonic() < until:
        wait_for_ends(left, until - time.monotonic())
    assert left == []
