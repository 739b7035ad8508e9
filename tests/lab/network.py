"""Hosts in network namespaces, and the faults of hosts and of the network between them.

    with Lab(tmp_path, ("h0", "h1", "h2")) as lab:
        lab.start("h0", "torchrun", ...)        `flowdist torchrun ...` there
        lab.partition("h0", "h2")

Each host has a network namespace with the address 10.77.0.1, 10.77.0.2, ... at eth0, a host name of its own, and an
/etc/hosts with all hosts. Files and process ids are shared. A program (`switch.py`) is the network between the hosts.
Nothing outside of these namespaces changes. Root is not needed where the kernel lets users make namespaces.

Leaving the block ends everything: the switch kills all processes of the lab when its input ends, and so also if the
test's own process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.lab.processes import kill_all, namespace_of, processes_in, signal_all
from tests.lab.switch import mac_of
from tests.runtime.harness import Job

SETUP_S = 30.0
ROOT = Path(__file__).parents[2]
PROGRAMS = ("unshare", "nsenter", "ip", "mount", "hostname")
# nsenter leaves the working folder: what it starts goes back there, as the same process.
ENTER = """exec nsenter "--target=$0" --net --uts --mount {user} sh -c 'cd "$0" && exec "$@"' "$PWD" "$@" """
BOOT = """
set -e
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
hostname "$2"
ip link set lo up
echo ready
exec cat
"""
WAIT_FOR_CABLES = 'echo ready; read cables; exec "$@"'


class LabUnavailable(Exception):
    """Error for a machine on which no lab can be made. The message is the reason."""


class LabHost:
    """One host of a lab. `holder` is the process that keeps its namespaces; it ends with the lab."""

    def __init__(self, name: str, number: int, holder: subprocess.Popen[str]) -> None:
        self.name, self.number, self.holder = name, number, holder
        self.address = f"10.77.0.{number + 1}"
        self.namespace = namespace_of(holder.pid)

    @property
    def processes(self) -> list[int]:
        """The processes of the host that a test has started, and all that come from them."""
        return [pid for pid in processes_in({self.namespace}) if pid != self.holder.pid]


class Lab:
    """Several hosts and the network between them.

    Args:
        folder: Each host gets a folder of its own in it, and all share it.
        names: The names of the hosts.
        seed: Seed of the loss of frames.
        rootless: Make user namespaces, as a user who is not root has to.
    """

    def __init__(
        self, folder: Path, names: Sequence[str] = ("h0", "h1", "h2"), *, seed: int = 0, rootless: bool | None = None
    ) -> None:
        self.folder, self.names, self._seed = folder, tuple(names), seed
        self._rootless = os.geteuid() != 0 if rootless is None else rootless
        self.hosts: dict[str, LabHost] = {}
        self.jobs: list[Job] = []
        self._down: set[int] = set()
        self._cut: set[tuple[int, int]] = set()
        self._delay_s: dict[int, float] = {}
        self._loss: dict[int, float] = {}
        if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
            raise LabUnavailable(f"{missing[0]} is not installed")

    def __enter__(self) -> Lab:
        self._stack = contextlib.ExitStack()
        try:
            self._bring_up()
        except BaseException as error:
            self._take_down()
            if isinstance(error, subprocess.CalledProcessError):
                raise LabUnavailable(f"no network can be made here: {error.stderr.strip()}") from None
            raise
        return self

    def _bring_up(self) -> None:
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"10.77.0.{i + 1} {name}\n" for i, name in enumerate(self.names))
        )
        (self.folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        user = ["--user", "--map-root-user"] if self._rootless else []
        switch = [sys.executable, "-m", "tests.lab.switch", str(len(self.names)), str(self._seed)]
        self._switch = self._hold(["unshare", *user, "--net", "--mount"], WAIT_FOR_CABLES, *switch)
        for number, name in enumerate(self.names):
            (self.folder / name).mkdir(exist_ok=True)
            inside = [*self._inside(self._switch.pid), "unshare", "--net", "--uts", "--mount"]
            self.hosts[name] = LabHost(name, number, self._hold(inside, BOOT, str(self.folder), name))
        self._lay_cables()
        self._ask_switch("go")
        self._apply()  # the switch knows the namespaces from now on

    def _hold(self, namespaces: list[str], script: str, *words: str) -> subprocess.Popen[str]:
        """Start a process that keeps new namespaces until its input ends, and wait until they are there."""
        holder = subprocess.Popen(
            [*namespaces, "sh", "-c", script, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,  # an interrupt of the terminal is for the tests
        )
        self._stack.callback(_end, holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise LabUnavailable(f"namespaces cannot be made here: {holder.stderr.read().strip()}")
        return holder

    def _lay_cables(self) -> None:
        """Connect each host with a port of the switch: p0 with the first host, p1 with the second one."""
        ports = []
        for host in self.hosts.values():
            port, mac = f"p{host.number}", mac_of(host.number)
            ports.append(f"link add {port} type veth peer name eth0 address {mac} netns {host.holder.pid}")
            ports += [f"link set {port} addrgenmode none", f"link set {port} up"]
        self._ip(self._switch.pid, ports)
        for host in self.hosts.values():
            self._ip(host.holder.pid, [f"addr add {host.address}/24 dev eth0", "link set eth0 up"])

    def _ip(self, holder: int, commands: Iterable[str]) -> None:
        text, command = "\n".join(commands), [*self._inside(holder), "ip", "-batch", "-"]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=SETUP_S)

    def _inside(self, holder: int) -> tuple[str, ...]:
        user = "--user --preserve-credentials" if self._rootless else ""
        return ("sh", "-c", ENTER.format(user=user), str(holder))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.text)
        self._take_down()

    def _take_down(self) -> None:
        for host in self.hosts.values():
            kill_all({host.namespace})
        for job in self.jobs:
            job.__exit__(None, None, None)
        self._stack.close()

    # What runs on the hosts

    def on(self, host: str) -> tuple[str, ...]:
        """Return the words with which a command on a host begins: it runs as the same process, in the same folder."""
        return self._inside(self.hosts[host].holder.pid)

    def run(self, host: str, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end and return its exit code and output."""
        words = [*self.on(host), *command]
        return subprocess.run(words, check=False, text=True, capture_output=True, timeout=SETUP_S, **options)

    def start(
        self, host: str, verb: str, *words: str, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> Job:
        """Start `flowdist VERB WORDS` on a host, in the host's folder. `before` are words before the command."""
        prefix = (*self.on(host), *before)
        self.jobs.append(Job(self.folder / host, *words, verb=verb, env=env, before=prefix))
        return self.jobs[-1]

    @property
    def text(self) -> str:
        """What the commands on all hosts have printed, as far as it was read."""
        return "\n".join(f"--- {job.folder.name}\n{job.text}" for job in self.jobs)

    # Faults

    def partition(self, host: str, *others: str) -> None:
        """Cut the connections between a host and others, in both directions."""
        self._cut |= {pair for other in others for pair in (self._pair(host, other), self._pair(other, host))}
        self._apply()

    def cut(self, source: str, *targets: str) -> None:
        """Cut connections in one direction: what the first host sends to the others is lost."""
        self._cut |= {self._pair(source, target) for target in targets}
        self._apply()

    def isolate(self, host: str) -> None:
        """Cut a host off from all others."""
        self.partition(host, *(other for other in self.names if other != host))

    def _pair(self, source: str, target: str) -> tuple[int, int]:
        return self.hosts[source].number, self.hosts[target].number

    def delay(self, host: str, seconds: float) -> None:
        """Let each frame from and to a host arrive later by so many seconds."""
        self._delay_s[self.hosts[host].number] = seconds
        self._apply()

    def lose(self, host: str, share: float) -> None:
        """Lose that share of the frames from and to a host, drawn by the seed of the lab."""
        self._loss[self.hosts[host].number] = share
        self._apply()

    def heal(self, *hosts: str) -> None:
        """End all partitions, delays and losses, or those of some hosts. Ports and links that are down stay down."""
        healed = {self.hosts[host].number for host in hosts or self.names}
        self._cut = {pair for pair in self._cut if healed.isdisjoint(pair)}
        for number in healed:
            self._delay_s.pop(number, None)
            self._loss.pop(number, None)
        self._apply()

    def port_down(self, host: str) -> None:
        """Pull the cable at the switch: both sides hear nothing any more, and no error."""
        self._down.add(self.hosts[host].number)
        self._apply()

    def port_up(self, host: str) -> None:
        self._down.discard(self.hosts[host].number)
        self._apply()

    def link_down(self, host: str) -> None:
        """Take down the interface inside of the host: programs there get "network is unreachable"."""
        self._ip(self.hosts[host].holder.pid, ["link set eth0 down"])

    def link_up(self, host: str) -> None:
        self._ip(self.hosts[host].holder.pid, ["link set eth0 up"])

    def power_off(self, host: str) -> None:
        """Take the power of a host away: nothing leaves it from this moment on, and all its processes are gone."""
        self.port_down(host)
        kill_all({self.hosts[host].namespace}, but=(self.hosts[host].holder.pid,))

    def power_on(self, host: str) -> None:
        """Give a host its power back. Nothing runs there."""
        self.port_up(host)

    def freeze(self, host: str) -> None:
        """Let all processes of a host stand still. Its kernel still answers."""
        signal_all({self.hosts[host].namespace}, signal.SIGSTOP, but=(self.hosts[host].holder.pid,))

    def thaw(self, host: str) -> None:
        signal_all({self.hosts[host].namespace}, signal.SIGCONT)

    def _apply(self) -> None:
        """Send the switch all faults that hold, and wait until they do."""
        order = {
            "down": sorted(self._down),
            "cut": sorted(self._cut),
            "delay_s": self._delay_s,
            "loss": self._loss,
            "namespaces": [host.namespace for host in self.hosts.values()],
        }
        self._ask_switch(json.dumps(order))

    def _ask_switch(self, line: str) -> None:
        assert self._switch.stdin is not None and self._switch.stdout is not None
        self._switch.stdin.write(f"{line}\n")
        self._switch.stdin.flush()
        if not self._switch.stdout.readline():
            assert self._switch.stderr is not None
            raise LabUnavailable(f"the switch has ended: {self._switch.stderr.read().strip()}")


def _end(holder: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        holder.communicate(timeout=SETUP_S)  # closes its input
