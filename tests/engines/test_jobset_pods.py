"""The commands of an export's pods, run as processes of this machine: what the manifests start works together.

A pod is a process here, with the command and the variables of its manifest. Paths of the image and DNS names are
replaced by those of this machine; everything else is as in the manifest.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from flowdist.dsl.load import load_topology
from flowdist.engines.jobset.manifests import documents
from flowdist.engines.jobset.options import read_options

TOPOLOGY = """
from flowdist import Restart, Secret, Topology
t = Topology("pods", grace="1s", drain="5s")
server = t.role("server", ["python", "worker.py"], kind="service", env={"KEY": Secret(env="SERVER_KEY")})
t.role("trainer", ["python", "worker.py"], replicas="2:3", cpu=0.25, gang=False, depends_on=[server.started()],
       restart=Restart("replica", max_restarts=2))
"""
# A worker says over one named pipe that it is up, and reads the other one until the test closes its end of it.
WORKER = """
import os, pathlib, signal
here = pathlib.Path(__file__).parent
with open(here / "ups", "w") as ups:
    ups.write(f"{os.environ['ROLE_NAME']}:{os.environ.get('KEY', '')}\\n")
if os.environ["ROLE_NAME"] == "server":
    signal.pause()
end = os.open(here / "end", os.O_RDONLY | os.O_NONBLOCK)  # an open that waits would miss an end that has come
os.set_blocking(end, True)
os.read(end, 1)
"""
PATIENCE_S = 60


class Cluster:
    """Pods of one export, as processes. Each line that a pod writes, and the end of a pod, wake up `until`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "topology.py").write_text(TOPOLOGY)
        (folder / "worker.py").write_text(WORKER)
        graph = load_topology(str(folder / "topology.py")).graph
        found = documents(graph, read_options(["image=x", f"workdir={folder}"], graph))
        (folder / "graph.json").write_text(found[1]["data"]["graph.json"])
        self.jobs = {job["name"]: job for job in found[-1]["spec"]["replicatedJobs"]}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.pods: list[subprocess.Popen[bytes]] = []
        self.ups: list[str] = []  # `role:secret` of each worker that has come up, in order
        self._changed = threading.Condition()
        self._readers: list[threading.Thread] = []
        for name in ("ups", "end"):
            os.mkfifo(folder / name)
        self._end = os.open(folder / "end", os.O_RDWR)
        self._ups = os.open(folder / "ups", os.O_RDWR)
        self._read(os.fdopen(self._ups, "rb", buffering=0, closefd=False), self._note_up)

    def _read(self, stream: IO[bytes], note: Callable[[bytes], bool]) -> None:
        """Begin to note each line of a stream, the empty one at its end, too, until `note` returns False."""

        def read() -> None:
            goes_on = True
            while goes_on:
                line = stream.readline()
                with self._changed:
                    goes_on = note(line)
                    self._changed.notify_all()

        self._readers.append(threading.Thread(target=read))
        self._readers[-1].start()

    def _note_up(self, line: bytes) -> bool:
        self.ups.append(line.decode().strip())
        return line != b"\n"  # `close` writes that

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start the pod of a Job as its manifest says."""
        (container,) = self.jobs[name]["template"]["spec"]["template"]["spec"]["containers"]
        command = [sys.executable, "-m", *map(self._here, container["command"])]
        env = {**os.environ, **{each["name"]: self._value(each) for each in container["env"]}}
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        pod = subprocess.Popen(command, env=env, cwd=self.folder, stdout=pipe, stderr=both, start_new_session=True)
        log, output = self.log(len(self.pods), name), pod.stdout
        assert output is not None

        def note(line: bytes) -> bool:
            with log.open("ab") as file:
                file.write(line)
            if not line:
                output.close()
                pod.wait()
            return bool(line)

        log.touch()
        self.pods.append(pod)
        self._read(output, note)
        return pod

    def end(self) -> None:
        """Let every trainer exit with code 0, those that have not started yet, too."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1

    def close(self) -> None:
        """End what is left of the pods, and the threads that read their output."""
        self.end()
        for pod in self.pods:
            if pod.poll() is None:
                pod.terminate()
        os.write(self._ups, b"\n")
        for reader in self._readers:
            reader.join()
        os.close(self._ups)

    def _here(self, word: str) -> str:
        word = word.replace("/etc/flowdist", str(self.folder)).replace("$(FLOWDIST_JOBSET_UID)", "uid-1")
        for path in ("/var/lib/flowdist", "/var/log/flowdist"):
            word = word.replace(path, str(self.folder / Path(path).parent.name))
        return f"127.0.0.1:{self.port}" if word.endswith(":29400") else word

    def _value(self, variable: dict[str, Any]) -> str:
        source = variable["valueFrom"]
        return f"secret {source['secretKeyRef']['key']}" if "secretKeyRef" in source else "uid-1"

    def up(self, role: str) -> int:
        return sum(up.startswith(f"{role}:") for up in self.ups)

    def log(self, number: int, name: str) -> Path:
        return self.folder / f"{name}-{number}.log"

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def until(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, PATIENCE_S), self.logs()

    def evict(self, pod: subprocess.Popen[bytes]) -> None:
        """Do what the hook of the controller's pod does: kill all its processes at once."""
        os.kill(pod.pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
        for process in (*_descendants(pod.pid), pod.pid):
            os.kill(process, signal.SIGKILL)
        pod.wait()


def _descendants(pid: int) -> list[int]:
    children = [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]
    return [each for child in children for each in (*_descendants(child), child)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.real
@pytest.mark.slow
def test_the_pods_of_an_export_run_the_job_through_losses(cluster: Cluster) -> None:
    controller = cluster.start("controller")
    cluster.start("server")
    trainers = [cluster.start("trainer") for _ in range(3)]
    cluster.until(lambda: (cluster.up("server"), cluster.up("trainer")) == (1, 3))
    assert "server:secret SERVER_KEY" in cluster.ups

    trainers[0].kill()  # a member's pod fails; RestartJob starts it again
    trainers[0].wait()
    cluster.start("trainer")
    cluster.until(lambda: cluster.up("trainer") >= 4)

    cluster.evict(controller)  # the next pod continues the job from the journal
    controller = cluster.start("controller")
    members = [cluster.log(1, "server"), *(cluster.log(number, "trainer") for number in (3, 4, 5))]
    cluster.until(lambda: all("connected to the controller again" in log.read_text() for log in members))

    os.kill(cluster.pods[3].pid, signal.SIGUSR1)  # a machine is drained: the hook of its pod, and then SIGTERM
    cluster.until(lambda: "is taken away in 8s" in cluster.log(6, "controller").read_text())
    cluster.pods[3].terminate()
    assert cluster.pods[3].wait(60) == 130, cluster.logs()
    cluster.start("trainer")
    cluster.until(lambda: "joined" in cluster.log(7, "trainer").read_text())
    cluster.end()
    cluster.until(lambda: all(pod.poll() is not None for pod in cluster.pods))
    assert [pod.returncode for pod in cluster.pods] == [-9, 0, -9, 130, 0, 0, 0, 0], cluster.logs()

    assert cluster.start("controller").wait(60) == 0  # a pod that comes after the end says so again
    assert "is over: succeeded" in cluster.log(8, "controller").read_text()
