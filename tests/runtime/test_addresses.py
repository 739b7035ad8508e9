"""Where a host listens and is reached: IPv4, IPv6 and both, one interface of several, and names known late."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli
from flowdist.errors import FlowdistError, JobFailed
from flowdist.runtime.wire.addresses import (
    Endpoint,
    Taken,
    address_of,
    has_address,
    interface_of,
    listening_address,
    listening_addresses,
    reachable_address,
    reserve,
    reserve_all,
    wait_for_name,
)
from flowdist.runtime.wire.interfaces import addresses_on, interfaces, outer_addresses
from tests.runtime.hosts import Hosts
from tests.runtime.network import Network

needs_ipv6 = pytest.mark.skipif(not has_address("::1"), reason="this machine has no IPv6: ::1 cannot be bound")


def test_a_host_listens_at_its_name_and_everywhere_when_that_means_loopback() -> None:
    known = {"host0": ["127.0.1.1"], "other": ["192.0.2.99"], "localhost": ["127.0.0.1"]}

    def resolve(host: str) -> list[str]:
        return known.get(host, [])

    found = [listening_addresses(host, resolve) for host in ("127.0.0.2", "0.0.0.0", "::", "localhost")]
    assert found == [("127.0.0.2",), (), (), ("127.0.0.1",)]
    assert listening_addresses("host0", resolve) == (), "other hosts know the name by another address"
    assert listening_addresses("other", resolve) == listening_addresses("unknown", resolve) == ()


@needs_ipv6
def test_a_name_with_addresses_of_both_families_is_listened_at_with_both() -> None:
    assert listening_addresses("localhost", lambda _: ["::1", "127.0.0.1"]) == ("127.0.0.1", "::1")
    assert listening_addresses("0:0:0:0:0:0:0:1") == ("::1",) and listening_address("::1") == "::1"


def test_a_port_is_reserved_once() -> None:
    held = reserve("127.0.0.1", 0)
    for again in (lambda: reserve("127.0.0.1", 0), lambda: reserve_all(["127.0.0.3", "127.0.0.1"], 0)):
        with pytest.raises(Taken, match="port 0 of this machine is taken by another flowdist"):
            again()
    elsewhere = reserve_all(["127.0.0.3", "127.0.0.2"], 0)  # what a refused reservation held is free again
    for each in (*elsewhere, held):
        each.close()
    reserve("127.0.0.1", 0).close()
    with pytest.raises(FlowdistError, match=r"192\.0\.2\.99:0 cannot be bound"):
        reserve("192.0.2.99", 0)
    with pytest.raises(FlowdistError, match="port 7 cannot be reserved: AF_UNIX path too long"):
        reserve("h" * 200, 7)


@needs_ipv6
def test_a_port_that_is_taken_in_one_family_alone_is_refused() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FlowdistError, match=rf"\[::1?\]:{port} cannot be bound: address already in use\n"):
            reserve_all([], port)
        with pytest.raises(FlowdistError, match=rf"\[::1\]:{port} cannot be bound"):
            reserve_all(["127.0.0.1", "::1"], port)


def test_interfaces_have_their_addresses_and_an_unknown_one_is_answered_with_those_that_exist() -> None:
    found = interfaces()
    assert "127.0.0.1" in found["lo"] and set(found) == {name for _, name in socket.if_nameindex()}
    assert interface_of("127.0.0.7") == interface_of("::1") == "lo" and interface_of("192.0.2.99") == ""
    assert addresses_on("lo")[0] == "127.0.0.1"
    with pytest.raises(FlowdistError, match="this machine has no interface 'eth99'") as refused:
        addresses_on("eth99")
    assert refused.value.help.startswith("it has: ") and "lo (127.0.0.1" in refused.value.help
    for address in outer_addresses():
        assert has_address(address) and address in found[interface_of(address)]
    assert reachable_address("10.0.0.1") == "10.0.0.1" and has_address(reachable_address(""))


def test_a_name_that_becomes_known_late_is_waited_for_with_one_line() -> None:
    lines: list[str] = []
    answers = [[], [], ["10.0.0.7"]]
    assert 50 < wait_for_name("late", 60, lines.append, lambda host: answers.pop(0), pause_s=0.06) < 60
    assert lines == ["host name 'late' is not known here yet; looking it up for another 60 s"] and not answers
    for known in ("10.0.0.1", "::1"):
        wait_for_name(known, 0, lines.append, lambda host: [])
    assert wait_for_name("known", 7.25, lines.append, lambda host: ["10.0.0.7"]) == 7.25
    assert len(lines) == 1
    with pytest.raises(JobFailed, match=r"host name 'never' has not become known here for 0\.01 s") as failed:
        wait_for_name("never", 0.01, lines.append, lambda host: [], pause_s=0.002)
    assert "check its spelling" in failed.value.help and len(lines) == 2
    with pytest.raises(FlowdistError, match="host name 'never' is unknown"):
        address_of("never", lambda host: [])


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("join 127.0.0.1:1 --interface eth99", "this machine has no interface 'eth99'"),
        ("join 127.0.0.1:1 --interface lo --local-addr 127.0.0.1", "--interface does not go with --local-addr"),
        ("run {topology} --interface lo", "--interface goes with --listen"),
        ("run {topology} --listen 127.0.0.1:12345 --interface eth99", "this machine has no interface 'eth99'"),
        ("torchrun --interface eth99 --nnodes 2 --rdzv-endpoint 127.0.0.1:12345 {script}", "no interface 'eth99'"),
        ("torchrun --interface lo {script}", "--interface is for several hosts"),
        ("join nosuch.invalid:1 --timeout 0", "host name 'nosuch.invalid' has not become known here for 0 s"),
    ],
)
def test_a_mistake_about_a_place_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWDIST_TOKEN", "of this test")
    (tmp_path / "topology.py").write_text("from flowdist import Topology\nt = Topology('x')\nt.role('a', 'true')\n")
    (tmp_path / "script.py").write_text("")
    done = call(*words.format(topology="topology.py", script="script.py").split())
    assert done.exit_code in (1, 2) and text in done.output and "Traceback" not in done.output, done.output


SERVICE = """
from flowdist import On, Topology

t = Topology("service", nodes=2)
echo = t.role("echo", ["python", "echo.py", "${self.port:rpc}"], kind="service", ports=["rpc"], ready_when="tcp:rpc")
t.role("asker", ["python", "ask.py", echo.addresses("rpc")], depends_on=[echo.ready()], apart=[echo])
"""
ECHO = """
import os, socket, sys
listening = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6)
while True:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(connection.recv(100).upper())
"""
ASK = """
import os, socket, sys
host, _, port = sys.argv[1].rpartition(":")
with socket.create_connection((host.strip("[]"), int(port))) as connection:
    connection.sendall(b"hello")
    print(host, "says", connection.recv(100).decode(), "to", os.environ["MASTER_ADDR"])
"""


@needs_ipv6
@pytest.mark.real
@pytest.mark.slow
def test_hosts_meet_and_roles_find_each_other_over_ipv6(tmp_path: Path) -> None:
    for name, text in (("echo.py", ECHO), ("ask.py", ASK), ("service.py", SERVICE)):
        (tmp_path / name).write_text(text)
    with Hosts(tmp_path) as hosts:
        endpoint = f"[::1]:{hosts.endpoint.rpartition(':')[2]}"
        hosts.start(1, "run", str(tmp_path / "service.py"), "--listen", endpoint).until("joined")
        hosts.start(2, "join", endpoint, "--interface", "lo")
        assert hosts.all_end() == [0, 0], hosts.text
        assert "[asker/0] [::1] says HELLO to ::1" in hosts.text and f"joined {endpoint} as" in hosts.text


RANK = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], flush=True)
"""


@pytest.mark.real
@pytest.mark.slow
def test_a_job_meets_on_the_interface_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    with Network() as network, Hosts(tmp_path) as hosts:
        for number in (1, 2):  # a second network, which the hosts do not name
            for words in (f"link add other{number} type veth peer name idle{number}", f"link set other{number} up"):
                ip(network, number, words)
            ip(network, number, f"addr add 10.88.0.{number}/24 dev other{number}")
        port = hosts.endpoint.rpartition(":")[2]
        line = ["--nnodes", "2", "--rdzv-endpoint", f"10.77.0.1:{port}", str(tmp_path / "rank.py")]
        wrong = hosts.start(1, "torchrun", "--interface", "other1", *line, before=network.on(1))
        assert wrong.finish() == 2 and "is 10.77.0.1, an address of veth1, and --interface is other1" in wrong.text
        assert "name one of its addresses: 10.88.0.1" in wrong.text
        everywhere = [word.replace("10.77.0.1", "0.0.0.0") for word in line]
        first = hosts.start(1, "torchrun", "--interface", "veth1", *everywhere, before=network.on(1))
        first.until("joined")
        second = hosts.start(2, "torchrun", "--interface", "veth2", *line, before=network.on(2))
        assert (first.finish(), second.finish()) == (0, 0), hosts.text
        assert "of 2 at 10.77.0.1" in first.text and "of 2 at 10.77.0.1" in second.text, hosts.text


def ip(network: Network, number: int, words: str) -> None:
    done = subprocess.run([*network.on(number), "ip", *words.split()], capture_output=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"ip {words}: {done.stderr.decode().strip()}")


def own_hosts_file(file: Path) -> tuple[str, ...]:
    """What a command begins with that has its own /etc/hosts; skips the test where that may not be."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    before = ("unshare", "-r", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(file))
    done = subprocess.run([*before, "true"], capture_output=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"namespaces may not be made here: {done.stderr.decode().strip()}")
    return before


@pytest.mark.real
@pytest.mark.slow
def test_hosts_wait_for_a_name_that_becomes_known_late_also_on_the_host_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    before = own_hosts_file(file)
    with Hosts(tmp_path) as hosts:
        port = hosts.endpoint.rpartition(":")[2]
        line = ["--nnodes", "2", "--rdzv-endpoint", str(Endpoint("late-host", int(port))), str(tmp_path / "rank.py")]
        for number in (1, 2):
            job = hosts.start(number, "torchrun", *line, before=before)
            job.until("host name 'late-host' is not known here yet; looking it up for another 600 s")
        stopped = hosts.start(3, "join", f"late-host:{port}", before=before, env={"FLOWDIST_TOKEN": "of this test"})
        stopped.until("is not known here yet")
        os.kill(stopped.process.pid, signal.SIGINT)
        assert stopped.finish() == 130, "it can be interrupted"
        with file.open("a") as more:
            more.write("127.0.0.1 late-host\n")
        assert hosts.jobs[0].finish() == hosts.jobs[1].finish() == 0, hosts.text
        assert sorted("joined late-host" in job.text for job in hosts.jobs[:2]) == [False, True], hosts.text
        assert hosts.text.count("is not known here yet") == 3
