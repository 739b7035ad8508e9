"""Fork servers: a server that is unsafe is not used, and the reason is reported; others fork and end with the node."""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowdist.runtime.processes import fork_server
from flowdist.runtime.processes.fork_server import running_threads
from flowdist.runtime.processes.fork_servers import ForkServers
from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    CancelSpawn,
    Ended,
    ForkServerSpec,
    Imports,
    Prepare,
    Spawn,
    Spawned,
    SpawnRefused,
    StartedCold,
    encode,
)
from tests.runtime.harness import Deaths, children
from tests.runtime.spawning import Spawning, cold_reasons

pytestmark = pytest.mark.real

WAITS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"


@pytest.fixture
def spawning(tmp_path: Path) -> Iterator[Spawning]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "says.py").write_text("import os; print('parent', os.getppid())")
    (folder / "waits.py").write_text(WAITS)
    with Spawning(folder) as spawning:
        yield spawning


def test_one_fork_server_serves_all_that_import_the_same(spawning: Spawning) -> None:
    servers = [
        spawning.server("json"),
        spawning.server("json"),
        spawning.server("csv"),
        spawning.server("json", env={"A": "1"}),
    ]
    outs = [spawning.outcome(spawning.start("says.py", server=server)).out for server in servers]
    assert outs[0] == outs[1] and len(set(outs)) == 3


def test_modules_are_imported_once(spawning: Spawning) -> None:
    (spawning.folder / "heavy.py").write_text("with open('imports', 'a') as file:\n    file.write('x')\n")
    (spawning.folder / "uses.py").write_text("import heavy")
    server = spawning.server("heavy")
    ids = [spawning.start("uses.py", server=server) for _ in range(5)]
    assert [spawning.outcome(id).code for id in ids] == [0] * 5
    assert (spawning.folder / "imports").read_text() == "x"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "left 1 thread running",
        ),
        ("import socket\nkept = socket.create_server(('127.0.0.1', 0))", "has opened socket:"),
        ("import select\nkept = select.epoll()", "has opened anon_inode:"),
        ("kept = open('heavy.py')", "has opened /"),
        ("import os\nkept = os.pipe()", "has opened pipe:"),
        (
            "import multiprocessing\nlock = multiprocessing.Lock()",
            "has made memory that processes share (/dev/shm/sem.",
        ),
        ("import mmap\nkept = mmap.mmap(-1, 8)", "has made memory that processes share (/dev/zero"),
        (
            "import subprocess\nkept = subprocess.Popen('cat', stdin=subprocess.PIPE)",  # it ends with its parent
            "an import has started a process",
        ),
        ("import random\nrandom.seed(1)", "an import has seeded the random numbers of random"),
        ("import sys\nsys.setprofile(lambda *_: None)", "traced or profiled"),
        (
            "import sys, types\ncuda = sys.modules['torch.cuda'] = types.ModuleType('torch.cuda')\n"
            "cuda.is_initialized = lambda: True",
            "an import has initialised CUDA",
        ),
        ("import nothing_of_that_name", "preload: heavy: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit(3)", "preload: heavy: SystemExit: 3"),
        ("import os\nos._exit(3)", "died while it imported: exit 3"),
        ("import os\nos.kill(os.getpid(), 11)", "died while it imported: signal SEGV"),
    ],
)
def test_what_an_import_does_may_forbid_forking(spawning: Spawning, code: str, reason: str) -> None:
    (spawning.folder / "heavy.py").write_text(code)
    server = spawning.server("heavy")
    ids = [spawning.start("says.py", server=server) for _ in range(3)]
    assert {spawning.outcome(id).out for id in ids} == {f"parent {spawning.process.pid}\n"}
    (told,) = cold_reasons(spawning)
    assert reason in told
    late = spawning.start("says.py", server=server)
    assert spawning.outcome(late).code == 0 and len(cold_reasons(spawning)) == 1
    assert children(spawning.process.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["numpy.random.seed(1)", "torch.manual_seed(1)"])
def test_an_import_that_seeds_forbids_it(spawning: Spawning, seeds: str) -> None:
    """All workers draw the same numbers then, as they would without flowdist."""
    module = seeds.partition(".")[0]
    pytest.importorskip(module)
    (spawning.folder / "heavy.py").write_text(f"import {module}\n{seeds}")
    assert spawning.outcome(spawning.start("says.py", server=spawning.server("heavy"))).code == 0
    (told,) = cold_reasons(spawning)
    assert told.startswith(f"an import has seeded the random numbers of {module}")


def test_a_module_that_hides_one_of_ours_forbids_it(spawning: Spawning) -> None:
    (spawning.folder / "selectors").mkdir()  # no package: it hides nothing
    (spawning.folder / "socket.py").write_text("")
    outcome = spawning.outcome(spawning.start("says.py", server=spawning.server("json")))
    assert outcome.out == f"parent {spawning.process.pid}\n"
    (told,) = cold_reasons(spawning)
    assert told == f"{spawning.folder / 'socket.py'} hides a module of that name"


def test_a_module_that_was_written_after_the_imports_is_found(spawning: Spawning) -> None:
    server = spawning.server("json")
    (spawning.folder / "uses.py").write_text("import sys\nsys.path.append('sub')\nimport later, deeper; print('found')")
    assert "No module named 'later'" in spawning.outcome(spawning.start("uses.py", server=server)).err
    (spawning.folder / "later.py").write_text("")
    (spawning.folder / "sub").mkdir()
    (spawning.folder / "sub/deeper.py").write_text("")
    assert spawning.outcome(spawning.start("uses.py", server=server)).out == "found\n"


def test_threads_that_end_with_a_fork_do_not(spawning: Spawning) -> None:
    """The threads of OpenBLAS, which numpy starts on a machine with several cores."""
    pytest.importorskip("numpy")
    (spawning.folder / "blas.py").write_text(
        "import numpy\nprint((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum())"
    )
    server = spawning.server("numpy")
    for _ in range(2):
        assert spawning.outcome(spawning.start("blas.py", server=server)).out == "27000000.0\n"
    assert cold_reasons(spawning) == []


def test_a_thread_that_has_been_joined_and_is_not_off_the_list_yet_does_not_count(tmp_path: Path) -> None:
    """Write threads as in /proc/PID/task: state and flags are the first and the seventh field after the name."""
    threads = {
        10: "(python) S 1 10 10 0 -1 4194304 0",
        11: "(pt_main (a) b) S 1 10 10 0 -1 4194368 0",
        12: "(joined) R 1 10 10 0 -1 4194372 0",
        13: "(joined) Z 1 10 10 0 -1 4194368 0",
        14: "(joined) X 1 10 10 0 -1 4194368 0",
    }
    for thread, stat in threads.items():
        (tmp_path / str(thread)).mkdir()
        (tmp_path / str(thread) / "stat").write_text(f"{thread} {stat}\n")
    (tmp_path / "15").mkdir()  # it ends while we look
    assert running_threads(tmp_path, 10) == ["pt_main (a) b"]


def test_files_that_an_import_has_opened_stay_open_and_ours_do_not(spawning: Spawning) -> None:
    """The file has no position that processes could share."""
    (spawning.folder / "heavy.py").write_text("kept = open('/dev/zero', 'rb', 0)")
    (spawning.folder / "reads.py").write_text(
        "import heavy, os\nprint(heavy.kept.read(2))\nprint(sorted(os.listdir('/proc/self/fd'), key=int)[4:])"
    )
    server = spawning.server("heavy")
    other = spawning.start("waits.py", server=server)
    spawning.output_until(other, "up")
    outcome = spawning.outcome(spawning.start("reads.py", server=server))
    assert outcome.out == "b'\\x00\\x00'\n['4']\n", outcome  # 3 is the file, 4 the folder that is listed


def test_a_worker_that_ends_takes_its_group_with_it(spawning: Spawning) -> None:
    (spawning.folder / "leads.py").write_text(
        "import os, signal, sys\n"
        "if os.fork() == 0:\n    print('up', flush=True)\n    signal.pause()\n"
        "os.read(os.open('go', os.O_RDONLY), 1)"
    )
    os.mkfifo(spawning.folder / "go")
    id = spawning.start("leads.py", server=spawning.server("json"))
    spawning.output_until(id, "up")
    pid = spawning.pid(id)
    assert (spawning.logs(id) / "pid").read_text() == f"{pid}\n"
    with Deaths([pid, *children(pid)]) as deaths:
        (spawning.folder / "go").write_text("x")
        assert spawning.outcome(id).code == 0
        assert deaths.survivors() == []


def test_a_cancelled_worker_does_not_wait_for_imports(spawning: Spawning) -> None:
    (spawning.folder / "heavy.py").write_text("import os\nos.read(os.open('go', os.O_RDONLY), 1)")
    os.mkfifo(spawning.folder / "go")
    server = spawning.server("heavy")
    ended, other = spawning.start("says.py", server=server), spawning.start("says.py", server=server)
    spawning.send(CancelSpawn(ended))
    assert spawning.until(Ended, ended) == Ended(ended, -signal.SIGTERM)
    assert spawning.until(Spawned, ended) == Spawned(ended, 0)
    (spawning.folder / "go").write_text("x")
    assert spawning.outcome(other).code == 0
    assert not spawning.logs(ended).exists()


def test_a_fork_server_can_be_there_before_its_workers(spawning: Spawning) -> None:
    (spawning.folder / "heavy.py").write_text("import os\nos.mkfifo('up')\nopen('up', 'w').close()")
    server = spawning.server("heavy")
    spawning.send(Prepare(server))
    while not (spawning.folder / "up").exists():
        time.sleep(0.01)
    (spawning.folder / "up").read_text()
    outcome = spawning.outcome(spawning.start("says.py", server=server))
    assert outcome.out == f"parent {children(spawning.process.pid)[0]}\n" and cold_reasons(spawning) == []


def test_an_unusable_fork_server_is_reported_when_a_worker_wants_it(spawning: Spawning) -> None:
    server = spawning.server("no_such_module")
    spawning.send(Prepare(server))
    for _ in range(2):
        assert spawning.outcome(spawning.start("says.py", server=server)).out == f"parent {spawning.process.pid}\n"
    assert cold_reasons(spawning) == ["preload: no_such_module: ModuleNotFoundError: No module named 'no_such_module'"]


def test_slow_imports_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "says.py").write_text("print('here')")
    (folder / "heavy.py").write_text("import signal\nsignal.pause()")
    with Spawning(folder, patience_s=0.2) as spawning:
        assert spawning.outcome(spawning.start("says.py", server=spawning.server("heavy"))).out == "here\n"
        assert cold_reasons(spawning) == ["its imports take more than 0.2 s"]
        assert children(spawning.process.pid) == []


def test_the_death_of_a_fork_server_is_that_of_its_workers(spawning: Spawning) -> None:
    server = spawning.server("json")
    for _ in range(3):
        ids = [spawning.start("waits.py", server=server) for _ in range(2)]
        for id in ids:
            spawning.output_until(id, "up")
        (parent,) = children(spawning.process.pid)
        with Deaths([parent, *(spawning.pid(id) for id in ids)]) as deaths:
            os.kill(parent, signal.SIGKILL)
            assert [spawning.outcome(id).code for id in ids] == [-signal.SIGKILL] * 2
            assert deaths.survivors() == []
    outcome = spawning.outcome(spawning.start("says.py", server=server))
    assert outcome.out == f"parent {spawning.process.pid}\n"
    assert cold_reasons(spawning) == ["its fork server died 3 times"]


def test_the_end_of_the_spawner_is_that_of_its_fork_servers(spawning: Spawning) -> None:
    id = spawning.start("waits.py", server=spawning.server("json"))
    assert spawning.pid(id)
    spawning.output_until(id, "up")
    servers = children(spawning.process.pid)
    with Deaths(servers) as deaths:
        spawning.process.kill()
        assert len(servers) == 1 and deaths.survivors() == []


def test_a_folder_that_is_not_there_is_refused_as_ever(spawning: Spawning) -> None:
    ready = spawning.server("json")
    assert spawning.outcome(spawning.start("says.py", server=ready)).code == 0
    (spawning.folder.parent / "logs of work" / "2").write_text("no folder")
    id = spawning.start("says.py", server=ready)
    answer = spawning.until(SpawnRefused, id)
    assert isinstance(answer, SpawnRefused) and "File exists" in answer.detail


def test_a_fork_server_of_a_spawner_that_was_killed_before_it_read_ends_well() -> None:
    ours, theirs = socket.socketpair()
    boot = str(Path(fork_server.__file__).with_name("fork_server_boot.py"))
    argv = [sys.executable, boot, str(theirs.fileno()), str(os.getpid())]
    with subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        ours.sendall(encode(Imports("", ())))
        select.select([ours], [], [])
        ours.close()
        _, said = process.communicate()
    assert (process.returncode, said) == (0, b"")


def test_an_interpreter_that_ends_before_it_has_read_anything_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    answers: list[Answer] = []
    started: list[Spawn] = []
    with selectors.DefaultSelector() as selector:
        servers = ForkServers(selector, answers.append, started.append)
        spec = ForkServerSpec(("/bin/true",), (), str(tmp_path), "", ())
        request = Spawn(1, ("python",), {}, str(tmp_path), str(tmp_path), spec)
        assert servers.spawn(request)
        ((key, _),) = selector.select(60)
        servers.receive(key.data)
        assert not selector.get_map()
    assert answers == [StartedCold(1, "its fork server died while it imported: exit 0")] and started == [request]
