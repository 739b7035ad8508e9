"""The learned preload with real processes: what workers import by their first step is imported once, if that is safe.

Small packages in a folder `site-packages` stand for what is installed, so that nothing here needs torch.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from flowdist.graph import RoleGraph, RoleSpec
from flowdist.graph.roles import FirstImports
from flowdist.runtime.agent.learning import MODULES_MIN, LearnedPreload
from flowdist.runtime.preload.cache import ProfileCache
from flowdist.runtime.preload.profile import RECORDING, UNKNOWN, checksum, read_recording
from flowdist.runtime.preload.ranks import set_ranks
from flowdist.runtime.processes.spawn_protocol import ForkServerSpec, Learn, Learned, Retire
from tests.runtime.harness import Job, children
from tests.runtime.spawning import Spawning, cold_reasons

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
PARTS = [f"part{i}" for i in range(MODULES_MIN)]
COUNTS = "import os\nos.write(os.open('imports', os.O_APPEND | os.O_CREAT | os.O_WRONLY), b'x')\n"
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


def install(folder: Path, name: str, code: str = "", parts: bool = False) -> None:
    """A package in the folder's `site-packages`; with `parts` one of so many modules that it is worth a fork server."""
    package = folder / "site-packages" / name
    package.mkdir(parents=True, exist_ok=True)
    if parts:
        code += "".join(f"from . import {part}\n" for part in PARTS)
        for part in PARTS:
            (package / f"{part}.py").write_text("")
    (package / "__init__.py").write_text(code)


@pytest.fixture
def spawning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawning]:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site-packages"), os.environ.get("PYTHONPATH", "")]))
    with Spawning(folder) as spawning:
        yield spawning


def learned(spawning: Spawning, *modules: str, changed: tuple[tuple[str, int], ...] = ()) -> ForkServerSpec:
    return msgspec.structs.replace(spawning.server("json"), learned=modules, per_worker=("RANK",), changed=changed)


def trial(spawning: Spawning, server: ForkServerSpec) -> Learned:
    spawning.send(Learn(server))
    answer = spawning.until(Learned, 0)
    assert isinstance(answer, Learned)
    return answer


def test_modules_that_others_import_need_no_name(spawning: Spawning) -> None:
    install(spawning.folder, "heavy", parts=True)
    install(spawning.folder, "more")
    server = learned(spawning, "heavy", *(f"heavy.{part}" for part in PARTS), "json", "more")
    assert trial(spawning, server) == Learned(server, "", ("heavy", "more"))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (THREAD, "its imports have left 1 thread running"),
        ("import socket\nkept = socket.socket()", "an import has opened socket:"),
        ("import random\nrandom.seed(7)", "an import has seeded the random numbers of random"),
        ("import subprocess\nkept = subprocess.Popen(['sleep', '1'])", "an import has started a process"),
        ("import sys\nsys.setprofile(lambda *_: None)", "it is traced or profiled"),
        ("import os\nos.environ.get('RANK')", "it reads RANK when it is imported"),
        ("import os\n'RANK' in os.environ", "it reads RANK when it is imported"),
        ("import os\nos.getenv('OTHER')", "it reads OTHER when it is imported, which the script changes"),
        ("import os\nos.getenv('NAMED')", "it reads NAMED when it is imported, which the script may change"),
        ("import beside", "beside.py, which may change"),
        ("raise ValueError('some\\ntext')", "ValueError: some text"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os\nos.environ.copy()", ""),
        ("import os\nos.environ['SET'] = 'by import'\nos.environ['SET']", ""),
        ("import os\nopen(__file__).close()", ""),
    ],
)
def test_a_module_that_may_not_be_preloaded_is_named(spawning: Spawning, code: str, why: str) -> None:
    (spawning.folder / "beside.py").write_text("")
    install(spawning.folder, "bad", code)
    install(spawning.folder, "good")
    changed = (("OTHER", checksum("x")), ("SET", checksum("by import")), ("NAMED", UNKNOWN))
    answer = trial(spawning, learned(spawning, "good", "bad", *(() if why else ("bad.part",)), changed=changed))
    assert [name for name, _ in answer.refused] == (["bad"] if why else ["bad.part"])
    assert why in answer.refused[0][1] and answer.unsafe == f"{answer.refused[0][0]}: {answer.refused[0][1]}"


def test_a_file_beside_the_script_is_never_imported_for_an_installed_module(spawning: Spawning) -> None:
    (spawning.folder / "hidden.py").write_text(COUNTS)
    answer = trial(spawning, learned(spawning, "hidden"))
    assert "hidden.py hides it" in answer.unsafe and not (spawning.folder / "imports").exists()


def test_a_worker_of_a_server_that_was_given_up_comes_from_the_one_without_learned_modules(spawning: Spawning) -> None:
    install(spawning.folder, "bad", THREAD)
    (spawning.folder / "says.py").write_text("import sys; print('bad' in sys.modules, 'json' in sys.modules)")
    server = learned(spawning, "bad")
    outs = [
        spawning.outcome(spawning.start("says.py", server=server)).out for _ in range(2)
    ]  # it waits, it comes later
    assert outs == ["False True\n"] * 2 and cold_reasons(spawning) == []


def test_variables_that_an_import_sets_are_those_of_a_plain_start(spawning: Spawning) -> None:
    code = "import os\nos.environ['SET'] = 'by import'\nos.environ.setdefault('GIVEN', 'by import')\n"
    install(spawning.folder, "sets", code + "os.environ.pop('GONE', None)\n")
    (spawning.folder / "says.py").write_text(
        "import sets, os; print([os.environ.get(name) for name in ('SET', 'GIVEN', 'GONE')], os.environb.get(b'SET'))"
    )
    server = learned(spawning, "sets")
    assert trial(spawning, server).unsafe == ""
    for env in ({}, {"GIVEN": "worker"}, {"GONE": "worker"}):
        cold = spawning.outcome(spawning.start("says.py", env=env))
        whole = tuple({**dict(server.env), **env}.items())
        warm = spawning.start("says.py", env=env, server=msgspec.structs.replace(server, env=whole))
        assert spawning.outcome(warm) == cold and "by import" in cold.out


def test_a_recording_has_what_is_installed_and_new_in_the_order_of_the_imports(spawning: Spawning) -> None:
    install(spawning.folder, "first", "import second")
    install(spawning.folder, "second")
    (spawning.folder / "beside.py").write_text("import second")
    code = "import os, sys, json, first, beside\nos.environ['MINE'] = '1'\n{}\nimport csv\n"
    (spawning.folder / "steps.py").write_text(code.format("from flowdist import worker; worker.progress(1)"))
    (spawning.folder / "ends.py").write_text(code.format("") + "sys.exit()")
    (spawning.folder / "fails.py").write_text(code.format("") + "sys.exit(3)")
    server = spawning.server("json")
    failing = spawning.start("fails.py", server=server, records=True)
    assert spawning.outcome(failing).code == 3 and not (spawning.logs(failing) / RECORDING).exists()
    for script, modules in (("steps.py", ()), ("ends.py", ("csv",))):
        id = spawning.start(script, server=server, records=True)
        assert spawning.outcome(id).code == 0
        found = read_recording((spawning.logs(id) / RECORDING).read_bytes())
        assert found is not None and found.at_step == (not modules)
        assert found.modules[:2] == ("first", "second") and set(modules) <= set(found.modules)
        assert "beside" not in found.modules and found.changed == (("MINE", checksum("1")),)


def test_a_worker_that_records_is_as_one_that_does_not(spawning: Spawning) -> None:
    (spawning.folder / "says.py").write_text(
        "import sys, os, threading; import csv; from flowdist import worker; worker.progress(1)\n"
        "print([type(finder).__name__ for finder in sys.meta_path], threading.enumerate(), sorted(os.environ))"
    )
    server = spawning.server("json")
    plain, recorded = (spawning.start("says.py", server=server, records=records) for records in (False, True))
    assert spawning.outcome(plain) == spawning.outcome(recorded)


def test_a_learned_server_has_standbys_for_the_workers_that_run(spawning: Spawning) -> None:
    (spawning.folder / "waits.py").write_text("print('up', flush=True)\nimport signal\nsignal.pause()\n")
    install(spawning.folder, "good")
    for id in [spawning.start("waits.py", server=spawning.server("json")) for _ in range(2)]:
        spawning.output_until(id, "up")
    (before,) = children(spawning.process.pid)
    trial(spawning, learned(spawning, "good"))
    (server,) = set(children(spawning.process.pid)) - {before}
    end = time.monotonic() + 60
    while len(children(server)) < 2:
        assert time.monotonic() < end, "no standbys"
        time.sleep(0.01)


def test_a_retired_server_ends_with_its_last_worker(spawning: Spawning) -> None:
    (spawning.folder / "waits.py").write_text("print('up', flush=True)\nimport signal\nsignal.pause()\n")
    server = spawning.server("json")
    id = spawning.start("waits.py", server=server)
    spawning.output_until(id, "up")
    (parent,) = children(spawning.process.pid)
    spawning.send(Retire(server))
    assert children(spawning.process.pid) == [parent]
    os.killpg(spawning.pid(id), 9)
    assert spawning.outcome(id).code == -9
    end = time.monotonic() + 30
    while children(spawning.process.pid):
        assert time.monotonic() < end, "it never ends"
        time.sleep(0.01)


class Node:
    """The agent's learning of one role, `python work.py`, with a real spawner."""

    def __init__(self, spawning: Spawning, cache: Path, first: FirstImports | None = None) -> None:
        self.role = RoleSpec("main", ("python", "work.py"), workdir=str(spawning.folder), preload=("json",))
        if first is not None:
            self.role = msgspec.structs.replace(self.role, first_imports=first)
        self.spawning, self.adopted = spawning, list[ForkServerSpec]()
        self._loop, self._heard = asyncio.new_event_loop(), len(spawning.heard)
        graph = RoleGraph("job", (self.role,))
        self.learning = LearnedPreload(graph, ProfileCache(cache), self._loop, spawning.send, self.adopted.append)

    def start(self) -> int:
        """Starts a worker, as the agent does."""
        server = self.learning.server_for(self.role, self.spawning.server("json"))
        folder = self.spawning.logs(self.spawning.last + 1)
        return self.spawning.start("work.py", server=server, records=self.learning.records(self.role, 0, folder))

    def out(self) -> str:
        return self.spawning.outcome(self.start()).out

    def until(self, text: str, capfd: pytest.CaptureFixture[str] | None = None) -> str:
        """Waits until a learned server was adopted, or a line of the node's log has the text."""
        end, said = time.monotonic() + 60, ""
        while not (self.adopted if capfd is None else text in said):
            assert time.monotonic() < end, f"{text} never came: {self.spawning.heard} {said}"
            self._loop.run_until_complete(asyncio.sleep(0.02))
            self.spawning.listen(0)
            for answer in self.spawning.heard[self._heard :]:
                if isinstance(answer, Learned):
                    self.learning.handle_answer(answer)
            self._heard = len(self.spawning.heard)
            said += capfd.readouterr().err if capfd is not None else ""
        return said

    def close(self) -> None:
        self._loop.close()


WORK = """
import sys
had = [name for name in ("heavy", "bad") if name in sys.modules]
import heavy, bad
from flowdist import worker
worker.progress(1)
print(had)
"""


def test_the_second_start_and_the_second_run_import_nothing_again(spawning: Spawning, tmp_path: Path) -> None:
    install(spawning.folder, "heavy", COUNTS, parts=True)
    install(spawning.folder, "bad")
    (spawning.folder / "work.py").write_text(WORK)
    node = Node(spawning, tmp_path / "cache")
    assert node.out() == "[]\n"
    node.until("adopted")
    assert [node.out(), node.out()] == ["['heavy', 'bad']\n"] * 2
    node.close()
    again = Node(spawning, tmp_path / "cache")  # a new agent has no server in use, but finds the profile
    assert again.out() == "['heavy', 'bad']\n"
    again.close()
    assert (spawning.folder / "imports").read_text() == "xxx"  # worker, trial, and the second run's fork server


def test_a_module_that_misbehaves_is_left_out_from_then_on_with_a_line(
    spawning: Spawning, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(spawning.folder, "heavy", parts=True)
    install(spawning.folder, "bad", THREAD)
    (spawning.folder / "work.py").write_text(WORK)
    node = Node(spawning, tmp_path / "cache")
    assert node.out() == "[]\n"
    line = "flowdist: main: the learned preload leaves bad out: its imports have left 1 thread running"
    assert line in node.until("leaves bad out", capfd)
    assert node.out() == "[]\n"  # nothing waits for the second trial
    node.until("adopted")
    assert node.out() == "['heavy']\n"
    node.close()
    again = Node(spawning, tmp_path / "cache")
    assert again.out() == "['heavy']\n" and cold_reasons(spawning) == []
    again.close()


FIRST = """
import sys
print([name for name in ("heavy", "first") if name in sys.modules])
import heavy, first
from flowdist import worker
worker.progress(1)
"""


def test_the_first_start_has_what_the_source_shows_and_the_next_one_has_all(spawning: Spawning, tmp_path: Path) -> None:
    install(spawning.folder, "heavy", parts=True)
    install(spawning.folder, "first", COUNTS)
    (spawning.folder / "work.py").write_text(FIRST)
    node = Node(spawning, tmp_path / "cache", FirstImports(("first",), ("OTHER",)))
    assert node.out() == "['first']\n"
    node.until("adopted")
    assert node.out() == "['heavy', 'first']\n"
    node.close()
    again = Node(spawning, tmp_path / "cache", FirstImports(("first",), ("OTHER",)))
    assert again.out() == "['heavy', 'first']\n"
    again.close()
    assert (spawning.folder / "imports").read_text() == "xxx"  # in each of the three fork servers, and in no worker


def test_what_the_source_shows_is_left_to_the_workers_if_it_reads_a_variable_that_the_source_names(
    spawning: Spawning, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(spawning.folder, "heavy", parts=True)
    install(spawning.folder, "first", "import os\nos.environ.get('OTHER')")
    (spawning.folder / "work.py").write_text(FIRST)
    node = Node(spawning, tmp_path / "cache", FirstImports(("first",), ("OTHER",)))
    assert node.out() == "[]\n"
    line = "flowdist: main: the learned preload begins without first: first: it reads OTHER when it is imported"
    assert line in node.until("begins without", capfd)
    node.until("adopted")
    assert node.out() == "['heavy', 'first']\n"  # the script has named the variable, and not changed it
    node.close()


def test_another_version_of_a_module_that_keeps_no_rank_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("torchmetrics.utilities.prints")
    monkeypatch.setitem(sys.modules, other.__name__, other)
    set_ranks({"LOCAL_RANK": "3"})
    assert not hasattr(other, "rank_zero_only")


@pytest.mark.parametrize("module", ["lightning.fabric.utilities.rank_zero", "torchmetrics.utilities.prints"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_module_that_keeps_the_rank_gets_that_of_each_worker(spawning: Spawning, module: str, is_kept: bool) -> None:
    folder = spawning.folder / "site-packages" / module.replace(".", "/")
    folder.parent.mkdir(parents=True)
    for parent in list(folder.parents)[: module.count(".")]:
        (parent / "__init__.py").write_text("")
    code = "import os\ndef rank_zero_only(): pass\nrank_zero_only.rank = int(os.environ.get('LOCAL_RANK') or 0)"
    folder.with_suffix(".py").write_text(code + ("" if is_kept else " + 1"))
    (spawning.folder / "says.py").write_text(f"import {module} as it\nprint(it.rank_zero_only.rank)")
    server = msgspec.structs.replace(learned(spawning, module), per_worker=("RANK", "LOCAL_RANK"))
    answer = trial(spawning, server)
    assert answer.refused == (() if is_kept else ((module, "it reads LOCAL_RANK when it is imported"),))
    if is_kept:
        ids = [spawning.start("says.py", server=server, env={"RANK": rank, "LOCAL_RANK": rank}) for rank in "32"]
        assert [spawning.outcome(id).out for id in ids] == ["3\n", "2\n"]


STEPS = """
import glob, os, sys, time
had = "torch._dynamo" in sys.modules
import torch
print("had it", had, flush=True)
model = torch.nn.Linear(2, 2)
optimizer = getattr(torch, "opt" + "im").AdamW(model.parameters())  # as flowdist's look at the code does not see it
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not had
end = time.monotonic() + 90
while time.monotonic() < end:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if not first or glob.glob(os.environ["XDG_CACHE_HOME"] + "/flowdist/preload/*.json"):
        sys.exit(1 if first else 0)
    time.sleep(0.05)
"""


@pytest.mark.slow
@needs_torch
def test_an_unmodified_script_that_trains_learns_without_an_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    env = {"FLOWDIST_LEARNED_PRELOAD": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ("--standalone", "--max-restarts", "1", "train.py")
    with Job(tmp_path, *command, verb="torchrun", env=env) as run:
        assert run.finish() == 0, run.text
        assert [line[-5:] for line in run.output if "had it" in line] == ["False", " True"], run.text
    with Job(tmp_path, *command, verb="torchrun", env=env) as run:
        assert run.finish() == 0 and "had it True" in run.text, run.text
    with Job(tmp_path, "--no-learned-preload", *command, verb="torchrun", env=env) as run:
        assert run.finish() == 0, run.text
        assert [line[-5:] for line in run.output if "had it" in line] == ["False"] * 2


@pytest.mark.slow
@needs_torch
def test_a_script_that_names_an_optimizer_has_what_that_imports_at_its_first_start(tmp_path: Path) -> None:
    code = "import sys\nprint('had it', 'torch._dynamo' in sys.modules)\nimport torch\ntorch.optim.SGD([torch.ones(1)])"
    (tmp_path / "train.py").write_text(code)
    env = {"FLOWDIST_LEARNED_PRELOAD": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with Job(tmp_path, "--standalone", "train.py", verb="torchrun", env=env) as run:
        assert run.finish() == 0 and "had it True" in run.text, run.text
