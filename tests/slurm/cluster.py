"""A real Slurm of several nodes on one machine: its daemons run on the hosts of a lab (tests/lab).

    with Cluster(tmp_path, nodes=4) as cluster:
        job = cluster.start("run", "--on", "slurm", ...)     `flowdist run ...` on the login node
        cluster.lab.power_off("h2")

The controller of Slurm, and the commands of the user, are on the host `login`; the nodes are h1, h2, ... All of it ends
with the lab. The machine's own configuration of Slurm and munge is not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType

from tests.lab.network import Lab, LabUnavailable
from tests.runtime.harness import Job

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
SBIN = "/usr/sbin:/sbin"
UP_S = 30.0
CONF = """
ClusterName=lab
SlurmctldHost=login({login})
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10,socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
SlurmdTimeout={timeout_s}
KillWait=10
MinJobAge=300
CompleteWait=0
ReturnToService=2
BatchStartTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
Licenses=solver:1
GresTypes=disk
"""
NODE = "NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=4 RealMemory=4000 Gres=disk:2 State=UNKNOWN\n"
PARTITIONS = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n"


def why_unavailable() -> str:
    """Return why no cluster can be made here; empty if nothing is known to be in the way."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    path = f"{os.environ['PATH']}:{SBIN}"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"{missing[0]} is not installed (Debian: slurm-wlm munge)" if missing else ""


class Cluster:
    """A Slurm cluster in a lab.

    Args:
        folder: Files of the cluster and of its lab; all hosts share it.
        nodes: Number of nodes.
        timeout_s: SlurmdTimeout: how long a silent node is not DOWN.
    """

    def __init__(self, folder: Path, nodes: int = 4, timeout_s: int = 300) -> None:
        self.folder, self._timeout_s = folder / "slurm", timeout_s
        self.nodes = [f"h{number}" for number in range(1, nodes + 1)]
        self.work = folder / "work"
        self.lab = Lab(folder, ("login", *self.nodes), rootless=False)
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:{SBIN}"}

    def __enter__(self) -> Cluster:
        self.lab.__enter__()
        try:
            self._start_daemons()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.logs())
        self.lab.__exit__(kind, error, trace)

    def _start_daemons(self) -> None:
        for name in ("", "state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        self.work.mkdir(exist_ok=True)
        conf = CONF.format(login=self.lab.hosts["login"].address, folder=self.folder, timeout_s=self._timeout_s)
        conf += "".join(NODE.format(name=name, address=self.lab.hosts[name].address) for name in self.nodes)
        (self.folder / "slurm.conf").write_text(conf + PARTITIONS)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "gres.conf").write_text("Name=disk Count=2\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munged.seed"}
        options = [f"--{name}={self.folder / path}" for name, path in files.items()]
        self._begin("login", "munged", "--force", *options, f"--log-file={self.folder / 'munged.log'}")
        self._begin("login", "slurmctld", "-c")
        for name in self.nodes:
            self._begin(name, "slurmd", "-N", name)
        self.until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "its nodes are idle", UP_S)

    def _begin(self, host: str, *command: str) -> None:
        """Start a daemon, which leaves this process."""
        done = self.lab.run(host, *command, env={**os.environ, **self.env})
        if done.returncode != 0:
            raise LabUnavailable(f"{command[0]} does not start: {done.stderr.strip()}")

    def start_daemon(self, node: str) -> None:
        """Start slurmd on a node that has its power back; it says that the node has booted."""
        self._begin(node, "slurmd", "-b", "-N", node)

    def call(self, *command: str) -> str:
        """Run one of Slurm's programs on the login node and return its output."""
        done = self.lab.run("login", *command, env={**os.environ, **self.env})
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def start(self, *words: str) -> Job:
        """Start `flowdist WORDS` on the login node, in the folder `work`, which all hosts share."""
        verb, *rest = words
        job = Job(self.work, *rest, verb=verb, env=self.env, before=self.lab.on("login"))
        self.lab.jobs.append(job)
        return job

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        lines = self.call("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> dict[str, tuple[str, str, str]]:
        """Return the job of each name: its number, state and node. Of several, the latest."""
        lines = self.call("squeue", "--noheader", "--states=all", "--sort=i", "--format=%j|%i|%T|%N").splitlines()
        return {name: (number, state, node) for name, number, state, node in (line.split("|") for line in lines)}

    def until(self, is_so: object, what: str, seconds: float = 60.0) -> None:
        """Wait until a condition holds: there is no event to wait for in a cluster of programs."""
        assert callable(is_so)
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, f"not in {seconds:.0f} s: {what}\n{self.call('squeue', '-t', 'all')}"
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the output of the members, and the last lines of Slurm's own log."""
        texts = []
        for path in sorted(self.work.glob("runs/*/members/*.out")):
            texts.append(f"--- {path.name}\n{path.read_text()[-3000:]}")
        with contextlib.suppress(OSError):
            texts.append("\n".join((self.folder / "slurmctld.log").read_text().splitlines()[-40:]))
        return "\n".join(texts)

    def fleet(self, run: Path) -> dict[str, dict[str, object]]:
        """Return the members of a run as flowdist has saved them, by name."""
        return {each["name"]: each for each in json.loads((run / "fleet.json").read_bytes())["members"]}
