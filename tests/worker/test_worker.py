"""flowdist.worker with a real Unix socket that plays the agent, and without flowdist."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowdist import worker
from flowdist.worker import agent_link as worker_link


class AgentSide:
    """An agent that keeps the lines of all connections and answers commits."""

    def __init__(self, path: Path, accept: bool = True) -> None:
        self.lines: list[dict[str, object]] = []
        self.links: list[socket.socket] = []
        self.connections = 0
        self.arrived = threading.Condition()
        self._accept = accept
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            with self.arrived:
                self.connections += 1
                self.links.append(link)
                self.arrived.notify_all()
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "commit" in message:
                    answer = {"commit": {"path": message["commit"]["path"], "accepted": self._accept, "reason": ""}}
                    link.sendall(json.dumps(answer).encode() + b"\n")
                with self.arrived:
                    self.lines.append(message)
                    self.arrived.notify_all()

    def first_link(self) -> socket.socket:
        """Wait for the first connection: the worker does not wait until it is accepted."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.links, 10)
            return self.links[0]

    def wait_for(self, count: int) -> list[dict[str, object]]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.lines) >= count, 10), self.lines
            return self.lines[:count]

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentSide]:
    """Make this process worker 1 of trainer/2."""
    env = {"FLOWDIST_SOCKET": str(tmp_path / "s"), "FLOWDIST_REPLICA": "trainer/2", "FLOWDIST_ATTEMPT": "3"}
    env |= {"LOCAL_RANK": "1", "FLOWDIST_GENERATION": "7", "FLOWDIST_PEERS": str(tmp_path / "peers.json")}
    env |= {
        "FLOWDIST_PORT_RPC_A": "15001",
        "FLOWDIST_LATEST": str(tmp_path / "latest.json"),
        "FLOWDIST_ROLE": "trainer",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    worker_link.link.close()
    side = AgentSide(tmp_path / "s")
    yield side
    worker_link.link.close()
    side.close()


def test_hello_comes_first_then_the_reports(managed: AgentSide) -> None:
    worker.ready()
    worker.progress(5)
    hello = {"hello": {"replica": "trainer/2", "attempt": 3, "local_rank": 1}}
    assert managed.wait_for(3) == [hello, {"ready": True}, {"progress": 5}]


def test_commit_is_answered(managed: AgentSide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step-5").mkdir()
    monkeypatch.chdir(tmp_path)
    assert worker.commit(Path("step-5"), step=5) is True
    assert managed.wait_for(2)[1] == {"commit": {"path": f"{tmp_path}/step-5", "step": 5, "generation": 7}}


def test_where_a_role_has_snapshots_a_commit_has_to_say_its_step(
    managed: AgentSide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWDIST_VAULT", str(tmp_path / "vault.sock"))
    with pytest.raises(ValueError, match=r"say which step the checkpoint has, as in commit\(path, step=step\)"):
        worker.commit(tmp_path)
    assert worker.commit(tmp_path, step=0) is True
    assert len(managed.wait_for(2)) == 2


def test_nothing_is_published_that_is_not_there(managed: AgentSide, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"commit\('.*/step-5'\): there is no such file or folder"):
        worker.commit(tmp_path / "step-5", step=5)
    worker.progress(5)
    assert managed.wait_for(2)[1] == {"progress": 5}


def test_an_empty_path_is_no_checkpoint(managed: AgentSide) -> None:
    """It was the present folder, and the answer was True."""
    with pytest.raises(ValueError, match="the path of the checkpoint is empty"):
        worker.commit("", step=5)
    worker.progress(5)
    assert managed.wait_for(2)[1] == {"progress": 5}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b'{"step": 3}', b'{"path": 7}', b'{"path": ""}', b"\xff"]
)
def test_a_damaged_pointer_is_named_and_training_does_not_begin_anew(
    managed: AgentSide, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "latest.json").write_bytes(content)
    with pytest.raises(
        RuntimeError, match=r"latest.json is damaged, so that the latest .*; without the file, training"
    ):
        worker.latest()
    (tmp_path / "latest.json").unlink()
    assert worker.latest() is None


def test_a_commit_of_a_former_generation_is_refused(managed: AgentSide, tmp_path: Path) -> None:
    managed._accept = False
    assert worker.commit(tmp_path) is False


def test_a_forked_child_opens_a_connection_of_its_own(managed: AgentSide) -> None:
    worker.progress(1)
    managed.wait_for(2)
    pid = os.fork()
    if pid == 0:
        worker.progress(2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    managed.wait_for(4)
    assert managed.connections == 2


def test_the_identity_of_a_worker(managed: AgentSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    me = worker.info()
    assert (me.role, me.replica, me.replica_index, me.rank, me.world_size) == ("trainer", "trainer/2", 2, 5, 8)
    assert (me.local_rank, me.generation, me.attempt) == (1, 7, 3)
    assert worker.port("rpc-a") == 15001
    with pytest.raises(RuntimeError, match="no port 'http'"):
        worker.port("http")


def test_peers_are_read_anew_each_time(managed: AgentSide, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text('{"ps:rpc": ["h:1"]}')
    assert worker.peers("ps", "rpc") == ["h:1"]
    (tmp_path / "peers.json").write_text('{"ps:rpc": ["h:2", "h:3"]}')
    assert worker.peers("ps", "rpc") == ["h:2", "h:3"]
    with pytest.raises(RuntimeError, match="no addresses for db:rpc"):
        worker.peers("db", "rpc")


def test_an_agent_that_is_gone_is_no_error_of_the_script(managed: AgentSide, tmp_path: Path) -> None:
    managed.close()
    (tmp_path / "s").unlink()
    worker.progress(1)
    assert worker.commit(tmp_path) is False


def count(steps: int) -> None:
    worker_link.link.send_now({"counted": steps})


def test_what_is_sent_inside_the_users_own_calls_arrives(managed: AgentSide) -> None:
    count(1)
    hello = {"hello": {"replica": "trainer/2", "attempt": 3, "local_rank": 1}}
    assert managed.wait_for(2) == [hello, {"counted": 1}]


def test_an_agent_that_does_not_read_keeps_no_training_waiting(
    tmp_path: Path, managed: AgentSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        monkeypatch.setenv("FLOWDIST_SOCKET", str(tmp_path / "deaf"))
        link = worker_link.AgentLink()
        monkeypatch.setattr(worker_link, "link", link)
        signal.setitimer(signal.ITIMER_REAL, 20)  # SIGALRM ends a test that waits
        for steps in range(20_000):
            count(steps)
        signal.setitimer(signal.ITIMER_REAL, 0)
        reading, _ = deaf.accept()
        with reading:
            link.close()
            with reading.makefile("rb") as lines:
                messages = [json.loads(line) for line in lines]
    assert list(messages[0]) == ["hello"], "every line that came is whole"
    assert messages[1:] == [{"counted": steps} for steps in range(len(messages) - 1)] and len(messages) < 20_000


def test_a_commit_in_another_thread_keeps_no_training_waiting(managed: AgentSide) -> None:
    with worker_link.link._lock:
        count(1)
    count(2)
    assert managed.wait_for(2)[1] == {"counted": 2}


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", None), ("LOCAL_RANK", "first"), ("FLOWDIST_SOCKET", "x")])
def test_what_a_script_does_to_its_variables_is_no_error_of_its_training(
    managed: AgentSide, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    with monkeypatch.context() as changed:
        if value is None:
            changed.delenv(name)
        else:
            changed.setenv(name, value)
        count(1)
    count(2)
    assert managed.wait_for(2)[1] == {"counted": 2}


def test_without_flowdist_everything_does_the_sensible_nothing(tmp_path: Path) -> None:
    code = (
        "from flowdist import worker; import sys;"
        "worker.ready(); worker.progress(3);"
        "assert worker.latest() is None and worker.commit('.', step=2) and worker.latest().is_dir();"
        "assert worker.latest('trainer') == worker.latest();"
        "assert worker.info().world_size == 1 and not worker.is_managed();"
        "heavy = [m for m in ('msgspec', 'torch', 'click') if m in sys.modules]; assert not heavy, heavy\n"
        "try: worker.peers('ps', 'rpc')\n"
        "except RuntimeError as error: assert 'needs flowdist' in str(error)\n"
        "else: raise SystemExit('peers() answered')\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWDIST", "RANK", "WORLD"))}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)


def test_under_torchrun_each_rank_is_a_replica_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FLOWDIST")]:
        monkeypatch.delenv(name)
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "ROLE_NAME": "default"}.items():
        monkeypatch.setenv(name, value)
    me = worker.info()
    assert (me.replica, me.replica_index, me.rank, me.local_rank) == ("worker/3", 3, 3, 1)


def test_versions_are_sent_as_numbers(managed: AgentSide) -> None:
    worker.publish_version(7)
    worker.acknowledge_version(0)
    assert managed.wait_for(3)[1:] == [{"published": 7}, {"acknowledged": 0}]


@pytest.mark.parametrize("call", [worker.publish_version, worker.acknowledge_version])
@pytest.mark.parametrize(
    ("version", "error"), [(-1, ValueError), (1 << 63, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_version_that_is_no_number_is_refused_with_the_call(call: Any, version: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=call.__name__):
        call(version)


def test_versions_go_nowhere_without_flowdist() -> None:
    worker.publish_version(1)
    worker.acknowledge_version(1)
