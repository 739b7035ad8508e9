"""Prefixes: what a script does before its split is done once; what must not be forked starts cold, with a reason."""

from __future__ import annotations

import contextlib
import gzip
import marshal
import os
import py_compile
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowdist.runtime.prefix.fork_safety import running_threads, unforkable_memory
from flowdist.runtime.prefix.generators import Generators
from flowdist.runtime.prefix.late import Late
from flowdist.runtime.processes.prefixes import Prefixes
from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    CancelSpawn,
    Ended,
    PrefixSpec,
    Prepare,
    Prepared,
    Respawned,
    Signal,
    Spawn,
    Spawned,
    SpawnRefused,
    StartedCold,
)
from flowdist.runtime.worker_env.worker_errors import error_line
from tests.runtime.harness import Deaths, children
from tests.runtime.spawning import Spawning, both, cold_reasons, write

pytestmark = pytest.mark.real

RANK = "import os; rank = os.environ['RANK']\n"
WAITS = RANK + "import signal\nprint('up', flush=True)\nsignal.pause()\n"
WAITS_FOR_ITSELF = (
    "import _thread\nprint('here', flush=True)\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()"
)
SAYS = RANK + "print('rank', rank, 'parent', os.getppid())\n"


@pytest.fixture
def spawning(tmp_path: Path) -> Iterator[Spawning]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "says.py").write_text(SAYS)
    (folder / "waits.py").write_text(WAITS)
    with Spawning(folder) as spawning:
        yield spawning


def outs(spawning: Spawning, script: str, ranks: str = "01", **env: str) -> list[str]:
    """What warm workers of these ranks print that are started one after the other."""
    found = []
    for rank in ranks:
        outcome = spawning.outcome(spawning.start(script, warm=True, env={"RANK": rank, **env}))
        assert outcome.code == 0, outcome.err
        found.append(outcome.out)
    return found


def test_ranks_of_one_command_come_from_one_process_and_others_do_not(spawning: Spawning) -> None:
    parents = [
        spawning.outcome(spawning.start(*args, warm=True, env=env)).out.split()[-1]
        for args, env in [
            (("says.py",), {"RANK": "0"}),
            (("says.py",), {"RANK": "1"}),
            (("says.py", "other"), {}),
            (("says.py",), {"A": "1"}),
        ]
    ]
    assert parents[0] == parents[1] and len(set(parents)) == 3


def test_the_script_runs_once_up_to_the_first_read_of_the_rank(spawning: Spawning) -> None:
    write(
        spawning.folder,
        "once",
        "import time\nat = time.perf_counter_ns()\nprint('before')\n" + RANK + "print(rank, at)",
    )
    first, second = outs(spawning, "once.py")
    assert first.splitlines()[0] == second.splitlines()[0] == "before"  # each has what it would have printed
    assert first.split()[-1] == second.split()[-1]
    assert [out.split()[1] for out in (first, second)] == ["0", "1"]


def test_the_log_of_the_node_says_where_the_split_is(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, "early", "import json\nopen('log.txt', 'a').write('begun')\nimport decimal\n" + RANK)
    with Spawning(tmp_path) as spawning:  # its errors are what the node's log has
        outs(spawning, "early.py")
    said = [line for line in capfd.readouterr().err.splitlines() if "split" in line]
    reason = f"it opens log.txt for writing ({tmp_path}/early.py:2)"
    assert said == [f"flowdist: the script has come to its split: {reason}"]


@pytest.mark.parametrize("cache", ["", "elsewhere"])
def test_a_module_that_python_compiles_is_imported_once(spawning: Spawning, cache: str) -> None:
    write(spawning.folder, "helper", "import time\nat = time.perf_counter_ns()")
    write(spawning.folder, "compiled", "import helper\n" + RANK + "print(helper.at)")
    env = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(spawning.folder / cache) if cache else ""}
    first, second = outs(spawning, "compiled.py", **env)
    assert first == second
    assert list((spawning.folder / cache).rglob("helper.*.pyc"))


@pytest.mark.parametrize(
    "reads",
    [
        "os.environ['RANK']",
        "os.environ.get('RANK', 'none')",
        "os.getenv('RANK')",
        "dict(os.environ)['RANK']",
        "{k: v for k, v in os.environ.items() if k == 'RANK'}['RANK']",
        "os.environb[b'RANK'].decode()",
        "os.environ.copy()['RANK']",
        "os.environ.setdefault('RANK', '5')",
        "os.environ.pop('RANK')",
        "(os.environ | {})['RANK']",
        "__import__('posix').environ[b'RANK'].decode()",
        "__import__('subprocess').check_output('echo $RANK', shell=True, text=True).strip()",
        "__import__('ctypes').CDLL(None).getenv and os.popen('echo $RANK').read().strip()",
    ],
)
def test_each_way_of_reading_the_rank_gives_that_of_the_worker(spawning: Spawning, reads: str) -> None:
    write(spawning.folder, "reads", f"import os\nprint({reads})")
    assert outs(spawning, "reads.py") == ["0\n", "1\n"]


def test_a_variable_of_the_start_can_be_the_first_that_is_read(spawning: Spawning) -> None:
    write(spawning.folder, "reads", "import os\nprint(os.environ['MASTER_PORT'], os.environ['RANK'])")
    for port in ("81", "82"):
        assert outs(spawning, "reads.py", MASTER_PORT=port) == [f"{port} 0\n", f"{port} 1\n"]


@pytest.mark.parametrize(
    "acts",
    [
        "import socket; print(socket.create_server(('127.0.0.1', 0)).getsockname()[1])",
        "import uuid; print(uuid.uuid4())",
        "import secrets; print(secrets.token_hex())",
        "import os; print(os.getpid())",
        "import tempfile; print(tempfile.mkdtemp(dir='.'))",
        "import tempfile; kept = tempfile.TemporaryDirectory(dir='.'); print(kept.name)",
        "import random; print(random.SystemRandom().random())",
        "import os; print(os.getpgrp())",
        "import threading; threading.Thread(target=lambda: print(threading.get_native_id())).start()",
        "import os; print(open('/proc/self/stat').read().split()[0])",
        "import os; print(os.fstat(os.openpty()[1]).st_ctime_ns)",
        "import os\ntry: print(os.open('lock', os.O_CREAT | os.O_EXCL))\nexcept FileExistsError: print('it is there')",
        "from multiprocessing.shared_memory import SharedMemory as S\nimport os\n"
        "s = S(name='NAME', create=True, size=9); print(os.fstat(s._fd).st_ctime_ns); s.unlink()",
    ],
)
def test_what_a_rank_does_or_draws_by_itself_is_its_own(spawning: Spawning, acts: str) -> None:
    write(spawning.folder, "acts", acts.replace("NAME", f"flowdist-test-{uuid.uuid4().hex}"))
    first, second = outs(spawning, "acts.py")
    assert first != second
    assert cold_reasons(spawning) == []


def test_what_torch_writes_by_itself_each_rank_writes(spawning: Spawning) -> None:
    pytest.importorskip("torch")
    saves = "import os, torch\ntorch.save(torch.ones(2), 'x.pt')\nprint(os.stat('x.pt').st_mtime_ns)"
    write(spawning.folder, "saves", saves)
    first, second = outs(spawning, "saves.py")
    assert first != second and cold_reasons(spawning) == []


def test_a_restart_sees_what_has_changed_of_a_file_that_compiled_code_has_mapped(spawning: Spawning) -> None:
    pytest.importorskip("torch")
    maps = "import os, torch\nkept = torch.from_file('weights', size=2, dtype=torch.uint8)\n"
    write(spawning.folder, "maps", f"{maps}{RANK}print(kept.tolist())")
    for content in b"ab", b"cd":
        (spawning.folder / "new").write_bytes(content)
        (spawning.folder / "new").rename(spawning.folder / "weights")
        assert outs(spawning, "maps.py", "0") == [f"{list(content)}\n"]


def test_a_module_that_is_imported_again_and_again_is_watched_once(spawning: Spawning) -> None:
    again = "import importlib, random, threading, time\nfor _ in range(2000):\n"
    imports = "    for name in 'random', 'threading', 'time':\n        importlib.import_module(name)\n"
    uses = "time.sleep(0)\nrandom.seed(1)\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()\n"
    write(spawning.folder, "imports", f"{again}{imports}{RANK}{uses}")
    assert outs(spawning, "imports.py") == ["\n"] * 2


OPENER = """
import posix
def safe_open(filename, framework):
    return posix.stat(filename).st_size  # which nobody sees
"""


def test_a_restart_sees_weights_appear_that_compiled_code_has_looked_for(spawning: Spawning) -> None:
    folder = spawning.folder / "safetensors"
    folder.mkdir()
    write(folder, "_safetensors_rust", OPENER)
    write(folder, "__init__", "from ._safetensors_rust import safe_open")
    tries = "try:\n    found = safe_open('weights', framework='pt')\nexcept OSError:\n    found = 'none'\n"
    write(spawning.folder, "resumes", f"from safetensors import safe_open\n{tries}{RANK}print(found)")
    assert outs(spawning, "resumes.py") == ["none\n"] * 2
    (spawning.folder / "weights").write_text("four")
    assert outs(spawning, "resumes.py") == ["4\n"] * 2


LIBRARY = """
import os, pathlib, tempfile, time
def tries():
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "source")
        source.touch()
        os.link(source, pathlib.Path(folder, "link"), follow_symlinks=False)
        os.mkdir(f"{folder}/below")
        return source.exists() and os.listdir(folder)
def keeps():
    return tempfile.mkdtemp(dir=os.path.dirname(__file__))
"""
LIBRARIES = {
    "it tries": "found = tries()",
    "it keeps": "found = tempfile.mkdtemp(dir=os.path.dirname(__file__))",
    "a function keeps": "found = keeps()",
}


@pytest.mark.parametrize("what", LIBRARIES)
def test_a_library_may_try_at_its_import_what_it_takes_back(spawning: Spawning, what: str) -> None:
    folder = spawning.folder / "site-packages"
    folder.mkdir()
    write(folder, "library", f"{LIBRARY}{LIBRARIES[what]}\nat = time.perf_counter_ns()")
    head = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport library, os\n"
    write(spawning.folder, "uses", head + RANK + "print(library.found, library.at)")
    outs_of_ranks = outs(spawning, "uses.py", "010")
    kept = ["a library has made", "at its import, and keeps it"] if what == "a function keeps" else []
    assert len(set(outs_of_ranks)) == (1 if what == "it tries" else 3)  # imported once, or by each
    assert len(cold_reasons(spawning)) == bool(kept) and all(word in str(cold_reasons(spawning)) for word in kept)


def test_a_rank_whose_library_keeps_a_temporary_folder_leaves_no_template(spawning: Spawning) -> None:
    folder = spawning.folder / "site-packages"
    folder.mkdir()
    write(folder, "library", LIBRARY + LIBRARIES["a function keeps"])
    head = f"import sys, time; sys.path.insert(0, {str(folder)!r})\n"
    busy = "while time.process_time() < 0.5: pass\nopen('acts', 'a').close()\n"
    write(spawning.folder, "computes", f"{head}{RANK}import library\n{busy}print(library.found)")
    assert len(set(outs(spawning, "computes.py", "000"))) == 3


def test_the_collector_is_as_ever_in_the_users_own_modules(spawning: Spawning) -> None:
    folder = spawning.folder / "site-packages"
    folder.mkdir()
    look = "import gc\nimport decimal\nprint(gc.get_threshold())\n"
    write(spawning.folder, "own", look)
    write(spawning.folder, "other", look)
    write(folder, "sets", "import gc\ngc.set_threshold(50_000, 20, 100)")
    write(folder, "library", "import importlib\nimportlib.import_module('other')\nimport sets")
    head = f"import gc, importlib, sys; sys.path.insert(0, {str(folder)!r})\nimportlib.import_module('own')\n"
    write(spawning.folder, "looks", head + "import library\nprint(gc.get_threshold())\n" + RANK)
    cold, warm = both(spawning, "looks.py")
    assert cold == warm and cold.out.endswith("(50000, 20, 100)\n")


@pytest.mark.parametrize("path", ["", "/of/the/user"])
def test_proc_shows_the_variables_of_the_worker(spawning: Spawning, path: str) -> None:
    entries = "open('/proc/self/environ').read().split('\\0')"
    reads = f"entries = {entries}[:-1]\nassert '' not in entries\nfound = dict(x.split('=', 1) for x in entries)\n"
    shown = "print([found.get(name) for name in ('RANK', 'MASTER_PORT', 'PYTHONPATH', 'HOME')])"
    write(spawning.folder, "reads", reads + shown)
    env = {"RANK": "1", "MASTER_PORT": "81", **({"PYTHONPATH": path} if path else {})}
    cold, warm = (spawning.outcome(spawning.start("reads.py", warm=warm, env=env)) for warm in (False, True))
    assert cold == warm and cold.code == 0


def test_a_seeded_generator_goes_on_and_one_that_is_not_is_seeded_for_each(spawning: Spawning) -> None:
    write(
        spawning.folder, "seeded", "import random\nrandom.seed(42)\nrandom.random()\n" + RANK + "print(random.random())"
    )
    write(spawning.folder, "free", "import random\n" + RANK + "print(random.random())")
    cold = spawning.outcome(spawning.start("seeded.py")).out
    assert outs(spawning, "seeded.py") == [cold, cold]
    first, second = outs(spawning, "free.py")
    assert first != second


def test_what_the_script_puts_in_place_of_a_function_is_called_by_the_script_alone(spawning: Spawning) -> None:
    calls = [
        "import random, time",
        "called = []",
        "def record(module, name):",
        "    was = getattr(module, name)",
        "    setattr(module, name, lambda *args: called.append(name) or was(*args))",
        "record(random, 'seed'), record(time, 'monotonic'), record(time, 'process_time')",
        RANK + "print(called, random.random())",
    ]
    write(spawning.folder, "patches", "\n".join(calls))
    first, second = outs(spawning, "patches.py")
    assert first.startswith("[] ") and second.startswith("[] ") and first != second


def test_a_file_that_is_being_read_has_a_position_for_each(spawning: Spawning) -> None:
    (spawning.folder / "lines").write_text("a\nb\nc\n")
    write(
        spawning.folder, "reads", "file = open('lines', buffering=1)\nfile.readline()\n" + RANK + "print(file.read())"
    )
    assert outs(spawning, "reads.py") == ["b\nc\n\n"] * 2


READS_ON = """
import gzip
packed, plain = gzip.open('lines.gz', 'rt'), os.open('lines', os.O_RDONLY)
copy = os.dup(plain)
print(packed.readline(), os.read(plain, 2))
sum(range(40_000_000))
os.getpid()
print(packed.read(), os.read(copy, 2), os.read(plain, 2))
"""


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_restart_reads_on_where_its_rank_has_begun_to_act(spawning: Spawning, place: str) -> None:
    """What the first worker has read meanwhile, or what was read through a copy of the descriptor, counts as well."""
    (spawning.folder / "lines").write_text("a\nb\nc\n")
    with gzip.open(spawning.folder / "lines.gz", "wt") as packed:
        packed.writelines(f"{number}\n" for number in range(100_000))
    opens, _, rest = READS_ON.partition("sum(")
    code = "import os" + opens + RANK + "sum(" + rest if place == "before" else RANK + READS_ON
    write(spawning.folder, "reads", code)
    cold = spawning.outcome(spawning.start("reads.py", env={"MASTER_PORT": "1"})).out
    for port in "123":
        assert outs(spawning, "reads.py", MASTER_PORT=port) == [cold, cold]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import select, os\nkept = select.kqueue() if hasattr(select, 'kqueue') else open('up', 'rb')", ""),
        ("import mmap\nkept = mmap.mmap(-1, 8)", "it has made memory that processes share (/dev/zero"),
        ("import signal\nsignal.alarm(100)", "it has set a timer"),
        ("import random\nrandom.random()", "it draws numbers of random, which it has not seeded"),
        ("import posix\nposix._exit(3)", "exit 3"),
    ],
)
def test_what_must_not_be_forked_starts_cold_and_says_so_once(spawning: Spawning, code: str, reason: str) -> None:
    (spawning.folder / "up").write_text("")
    write(spawning.folder, "heavy", code)
    write(spawning.folder, "uses", "import heavy\n" + SAYS)
    ids = [spawning.start("uses.py", warm=True) for _ in range(2)]
    codes = [spawning.outcome(id).code for id in ids]
    told = cold_reasons(spawning)
    if not reason:
        assert told == [] and codes == [0, 0]
        return
    assert len(told) == 1 and reason in told[0]
    assert codes == [3, 3] if "exit 3" in reason else [0, 0]
    late = spawning.start("uses.py", warm=True)
    spawning.outcome(late)
    assert len(cold_reasons(spawning)) == 1
    assert children(spawning.process.pid) == []


def test_the_reason_names_the_import_that_has_started_a_thread(spawning: Spawning) -> None:
    (spawning.folder / "site-packages").mkdir()
    write(
        spawning.folder / "site-packages", "starts", "import _thread, time; _thread.start_new_thread(time.sleep, (60,))"
    )
    write(spawning.folder, "uses", "import sys; sys.path.append('site-packages')\nimport json, starts\n" + SAYS)
    assert spawning.outcome(spawning.start("uses.py", warm=True)).code == 0
    (reason,) = cold_reasons(spawning)
    assert reason.startswith("it has left 1 thread running (") and reason.endswith(") since it imported starts")


def install(folder: Path, name: str) -> None:
    """Make what pip leaves of a package in a folder of modules."""
    (folder / f"{name}-1.dist-info").mkdir()
    (folder / f"{name}-1.dist-info/METADATA").write_text(f"Name: {name.title()}\nVersion: 1\n")


@pytest.mark.parametrize(
    ("reads", "change"),
    [
        ("print(open('config').read())", lambda folder: (folder / "config").write_text("new")),
        ("print(os.path.exists('ckpt'))", lambda folder: (folder / "ckpt").write_text("")),
        ("print(sorted(os.listdir('data')))", lambda folder: (folder / "data/b").write_text("")),
        ("print([each.name for each in os.scandir('data')])", lambda folder: (folder / "data/b").write_text("")),
        ("import mine; print(mine.value)", lambda folder: (folder / "mine.py").write_text("value = 'two!'")),
        ("print(os.stat('config').st_size)", lambda folder: (folder / "config").write_text("longer")),
        (
            "try:\n    import other; print('there')\nexcept ImportError:\n    print('missing')",
            lambda folder: (folder / "other.py").write_text(""),
        ),
        (
            "try:\n    from package import other; print('there')\nexcept ImportError:\n    print('missing')",
            lambda folder: (folder / "package/other.py").write_text(""),
        ),
        (
            "from importlib import metadata\n"
            "print('Mine' in [each.metadata['Name'] for each in metadata.distributions()])",
            lambda folder: install(folder, "mine"),
        ),
    ],
    ids=["open", "exists", "listdir", "scandir", "module", "stat", "missing module", "missing submodule", "package"],
)
def test_a_restart_sees_what_has_changed(spawning: Spawning, reads: str, change: Any) -> None:
    folder = spawning.folder
    (folder / "config").write_text("old")
    (folder / "mine.py").write_text("value = 1")
    for name in "data/a", "package/__init__.py":
        (folder / name).parent.mkdir()
        (folder / name).write_text("")
    write(folder, "reads", f"import os\n{reads}\n" + RANK)
    before = outs(spawning, "reads.py")
    change(folder)
    after = outs(spawning, "reads.py")
    assert after == [spawning.outcome(spawning.start("reads.py")).out] * 2
    assert before[0] == before[1] != after[0]
    assert len(children(spawning.process.pid)) == 1  # the old prefix has ended


@pytest.mark.parametrize(
    "looks", ["os.path.isdir('cache')", "'cache' in os.listdir()", "any(each.name == 'cache' for each in os.scandir())"]
)
def test_all_ranks_of_a_start_are_the_first_that_miss_a_folder_and_a_restart_finds_it(
    spawning: Spawning, looks: str
) -> None:
    script = f"import os\nis_there = {looks}\nos.makedirs('cache/of/mine', exist_ok=True)\nprint(is_there)\n"
    write(spawning.folder, "prepares", script + RANK)
    assert outs(spawning, "prepares.py", FLOWDIST_GENERATION="1") == ["False\n"] * 2
    assert outs(spawning, "prepares.py", FLOWDIST_GENERATION="2") == ["True\n"] * 2
    shutil.rmtree(spawning.folder / "cache")
    assert outs(spawning, "prepares.py", FLOWDIST_GENERATION="3") == ["False\n"] * 2


def test_a_folder_of_modules_that_appears_is_found_by_a_restart_from_the_same_prefix(spawning: Spawning) -> None:
    tries = "try:\n    import extra; found = extra.NAME\nexcept ImportError:\n    found = None\n"
    code = "import sys; sys.path.insert(0, 'made'); import colorsys\n" + RANK + tries + "print(found, os.getppid())"
    write(spawning.folder, "finds", code)
    first = spawning.outcome(spawning.start("finds.py", warm=True)).out.split()
    (spawning.folder / "made").mkdir()
    write(spawning.folder / "made", "extra", "NAME = 'new'")
    assert spawning.outcome(spawning.start("finds.py", warm=True)).out.split() == ["new", first[1]]
    assert first[0] == "None"


def test_a_module_that_loads_itself_when_it_is_asked_is_not_asked_by_the_split(spawning: Spawning) -> None:
    write(spawning.folder, "heavy", "print('loaded')")
    write(
        spawning.folder,
        "lazy",
        """
        import sys, importlib.util
        spec = importlib.util.find_spec("heavy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        heavy = sys.modules["heavy"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(heavy)
        import os; rank = os.environ['RANK']
        open("acts", "w").close()
        print("asks"); hasattr(heavy, 'anything')
        """,
    )
    cold, warm = both(spawning, "lazy.py")
    assert cold == warm and warm.out == "asks\nloaded\n"


KEPT = {
    "a name": ("from time import sleep", "sleep is time.sleep, type(sleep)"),
    "a name from after the split": ("import json", "monotonic is time.monotonic"),
    "a table": ("from os import stat; table = {'look': stat}", "table['look'] is os.stat, pickle.dumps(table)"),
    "an object": (
        "class Timer:\n    def __init__(self): self.now = time.time\nkept = Timer()",
        "kept.now is time.time, pickle.dumps(kept)",
    ),
    "a list": ("from os import getpid; kept = [getpid]", "kept[0] is os.getpid, pickle.dumps(kept)"),
    "a name of a library": ("import timeit", "timeit.default_timer is time.perf_counter"),
    "a name that the script has changed": ("from time import sleep; sleep = print", "sleep is print"),
    "beside a value that compares in its own way": (
        "class Odd:\n    def __eq__(self, other): raise ValueError\n    __hash__ = None\nkept = [Odd(), os.stat]",
        "kept[1] is os.stat and type(kept[1]).__name__",
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_function_that_is_kept_elsewhere_is_itself_once_the_worker_acts(spawning: Spawning, what: str) -> None:
    keeps, says = KEPT[what]
    imports = "import os, pickle, time\n"
    acts = "from time import monotonic\nopen('acts', 'w').close()\n"
    write(spawning.folder, "keeps", f"{imports}{keeps}\n{RANK}{acts}print({says})")
    cold, warm = both(spawning, "keeps.py")
    assert cold == warm and "False" not in warm.out


def test_a_function_that_is_watched_is_pickled_as_itself(spawning: Spawning) -> None:
    write(spawning.folder, "pickles", f"import pickle, time\nkept = pickle.dumps(time.sleep)\n{RANK}print(kept)")
    cold, warm = both(spawning, "pickles.py")
    assert cold == warm and "sleep" in warm.out


def test_a_module_that_is_edited_before_the_split_is_noticed(spawning: Spawning) -> None:
    folder = spawning.folder
    write(folder, "mine", "print('one')")
    write(folder, "later", "")
    py_compile.compile(str(folder / "mine.py"))  # nobody sees the import read the source then
    waits = (
        "while True:\n    try:\n        posix.stat('go')\n        break\n    except OSError:\n        pass\n"  # unseen
    )
    write(folder, "reads", f"import posix, mine, later\n{waits}{RANK}")
    id = spawning.start("reads.py", warm=True)
    spawning.until_there("__pycache__/later.*")
    write(folder, "mine", "print('edited')")
    (folder / "go").write_text("")
    assert spawning.outcome(id).out == "edited\n"


def test_another_folder_in_the_place_of_the_old_one_is_noticed(spawning: Spawning) -> None:
    folder = spawning.folder
    write(folder.parent, "says", RANK + "print(os.stat('.').st_ino)")
    script = str(folder.parent / "says.py")
    before = outs(spawning, script, "0")
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    assert outs(spawning, script, "0") == [spawning.outcome(spawning.start(script)).out] != before


def test_what_a_library_keeps_of_the_variables_after_the_split_is_of_this_start(spawning: Spawning) -> None:
    folder = spawning.folder / "site-packages"
    folder.mkdir()
    write(folder, "library", "import os\nKEPT = dict(os.environ)")
    busy = "while time.process_time() < 0.5: pass\nopen('acts', 'a').close()\n"
    head = f"import sys, time; sys.path.insert(0, {str(folder)!r})\n"
    write(
        spawning.folder, "computes", f"{head}{RANK}import library\n{busy}print(''.join([library.KEPT['MASTER_PORT']]))"
    )
    assert [outs(spawning, "computes.py", "0", MASTER_PORT=port) for port in "12"] == [["1\n"], ["2\n"]]


@pytest.mark.parametrize(
    "searches",
    [
        "",
        "from importlib import metadata\nlist(metadata.distributions())\n",  # `import torch` looks for packages, too
    ],
    ids=["imports", "packages"],
)
def test_a_checkpoint_beside_the_script_changes_nothing(spawning: Spawning, searches: str) -> None:
    (spawning.folder / "searches.py").write_text(searches + SAYS)
    (first,) = outs(spawning, "searches.py", "0")
    (spawning.folder / "ckpt.pt").write_text("")
    (second,) = outs(spawning, "searches.py", "0")
    assert first == second  # the parent, too: the prefix


def test_an_edited_script_is_run_anew(spawning: Spawning) -> None:
    assert outs(spawning, "says.py", "0")[0].startswith("rank 0")
    (spawning.folder / "says.py").write_text("print('edited')\n")
    assert outs(spawning, "says.py", "0") == ["edited\n"]


def test_arguments_that_differ_are_those_of_each_worker(spawning: Spawning) -> None:
    write(spawning.folder, "args", "import sys\nprint('before')\nprint(sys.argv[1:], len(sys.argv))\n" + RANK)
    spec = spawning.prefix("args.py", "--rank", "${rank}")
    found = []
    for rank in "01":
        spawning.last += 1
        argv = (*spec.argv[:3], rank)
        env = {**dict(spec.env), "RANK": rank}
        shared = PrefixSpec(spec.argv, spec.env, spec.cwd, spec.unknown, spec.of_start, (), has_own_words=True)
        folder = str(spawning.logs(spawning.last))
        spawning.send(Spawn(spawning.last, argv, env, str(spawning.folder), folder, shared))
        found.append(spawning.outcome(spawning.last).out)
    assert found == ["before\n['--rank', '0'] 3\n", "before\n['--rank', '1'] 3\n"]


SLOW = (
    RANK
    + """
from datetime import datetime
sum(range(40_000_000))
at = datetime.now()  # nobody sees this clock being read
print('computed', at)
print('attempt', os.environ['MASTER_PORT'])
"""
)


def test_a_restart_goes_on_where_its_rank_has_begun_to_act(spawning: Spawning) -> None:
    write(spawning.folder, "slow", SLOW)
    firsts = outs(spawning, "slow.py", "01", MASTER_PORT="1")
    seconds = outs(spawning, "slow.py", "01", MASTER_PORT="2")
    for first, second in zip(firsts, seconds, strict=True):
        assert first.splitlines()[0] == second.splitlines()[0]
        assert (first.splitlines()[1], second.splitlines()[1]) == ("attempt 1", "attempt 2")
    assert firsts[0] != firsts[1]
    assert outs(spawning, "slow.py", "7", MASTER_PORT="2")[0].splitlines()[0] != firsts[0].splitlines()[0]


def test_a_clock_that_is_read_after_the_rank_is_read_again_in_a_restart(spawning: Spawning) -> None:
    write(spawning.folder, "deadline", RANK + "sum(range(40_000_000))\nimport time\nprint(time.monotonic())\n")
    (first,), (second,) = (outs(spawning, "deadline.py", "0", MASTER_PORT=port) for port in "12")
    assert float(first) < float(second)


def test_output_goes_to_the_log_through_descriptors_that_were_copied_before_the_split(spawning: Spawning) -> None:
    early = "import os\ncopy = os.dup(1)\nos.write(copy, b'early\\n')\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
    write(
        spawning.folder,
        "copies",
        early + RANK + "print('hidden', flush=True)\nos.write(copy, b'late ' + rank.encode())",
    )
    assert outs(spawning, "copies.py") == ["early\nlate 0", "early\nlate 1"]


def test_the_template_of_a_rank_is_no_child_of_the_worker(spawning: Spawning) -> None:
    write(
        spawning.folder,
        "waits_for_all",
        SLOW + "try:\n    print(os.wait())\nexcept ChildProcessError:\n    print('no child')\n",
    )
    assert outs(spawning, "waits_for_all.py", "0")[0].splitlines()[-1] == "no child"


def test_late_imports_are_done_once_and_not_if_the_script_sets_what_they_read(spawning: Spawning) -> None:
    write(spawning.folder, "heavy", "import os, time\nat = time.perf_counter_ns()\nmode = os.environ.get('MODE')")
    write(spawning.folder, "uses", RANK + "import heavy\nprint(heavy.at, heavy.mode)")
    write(spawning.folder, "sets", RANK + "print('once')\nos.environ['MODE'] = rank\nimport heavy\nprint(heavy.mode)")
    first, second = (
        spawning.outcome(spawning.start("uses.py", warm=True, env={"RANK": rank}, late=("heavy",))).out for rank in "01"
    )
    assert first == second
    for rank in "01":
        id = spawning.start("sets.py", warm=True, env={"RANK": rank}, late=("heavy",))
        assert spawning.outcome(id).out == f"once\n{rank}\n"
    assert any(isinstance(answer, Respawned) for answer in spawning.heard)


FORKS = """import os, socket, sys
from flowdist.runtime.prefix.link import Link
from flowdist.runtime.prefix.template import _fork_worker
from flowdist.runtime.prefix.worker import Start
link, start = Link(socket.socket(fileno=int(sys.argv[1]))), Start(3, [], {}, sys.argv[2], [], None)
os.write(1, b"forks")
if pid := _fork_worker(start, link):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # a worker ends with its template
    os.write(1, f" {code}".encode())
else:
    os.write(1, b"goes on")
    link.send("again", 3)
    os._exit(0)
"""


@contextlib.contextmanager
def forking(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], list[Any]]]]:
    """A template that forks a worker, and waits where it tells the spawner: that takes nothing until the messages are
    asked for."""
    spawner, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            link.send(b"fills it")
    link.setblocking(True)
    command = [sys.executable, "-c", FORKS, str(link.fileno()), str(folder)]
    with subprocess.Popen(command, pass_fds=[link.fileno()], stdout=subprocess.PIPE, bufsize=0) as template, spawner:
        link.close()
        assert template.stdout is not None and template.stdout.read(5) == b"forks"
        packets = iter(lambda: spawner.recv(1 << 10), b"")
        yield template, lambda: [marshal.loads(packet)[:2] for packet in packets if packet != b"fills it"]


def test_the_spawner_is_told_of_a_worker_before_it_hears_from_it(tmp_path: Path) -> None:
    """A worker that begins anew at once came first, under load: the spawner did not know it, and died."""
    with forking(tmp_path) as (template, messages):
        assert select.select([template.stdout], [], [], 0.5)[0] == []
        assert messages() == [("spawned", 3), ("again", 3)]


def test_a_worker_can_be_stopped_as_soon_as_the_spawner_is_told_of_it(tmp_path: Path) -> None:
    """A stop that came at once was lost, under load: the worker did not lead its group yet, and ran on."""
    os.mkfifo(tmp_path / "pid.new")
    with forking(tmp_path) as (template, messages):
        pid = int((tmp_path / "pid.new").read_text())
        os.killpg(pid, signal.SIGTERM)
        assert messages() == [("spawned", 3)]
        assert template.stdout is not None and template.stdout.read() == b" -15"


@pytest.mark.parametrize(
    "draws",
    [
        "import numpy\nprint(numpy.random.rand())",
        "import random\nprint(random.random())",
        "from multiprocessing import process\nprint(bytes(process.current_process().authkey))",
    ],
)
def test_random_numbers_of_late_imports_are_those_of_each_rank(spawning: Spawning, draws: str) -> None:
    write(spawning.folder, "draws", RANK + draws)
    late = ("numpy.random", "random", "multiprocessing.process")
    ids = [spawning.start("draws.py", warm=True, env={"RANK": rank}, late=late) for rank in "01"]
    assert len({spawning.outcome(id).out for id in ids}) == 2
    assert cold_reasons(spawning) == []


def test_a_script_that_ends_needs_no_late_imports(spawning: Spawning) -> None:
    write(spawning.folder, "heavy", "print('imported')")
    write(spawning.folder, "ends", "print('done')")
    assert spawning.outcome(spawning.start("ends.py", warm=True, late=("heavy",))).out == "done\n"
    assert not list(spawning.folder.glob("__pycache__/heavy.*"))


def test_late_imports_that_fail_are_left_to_the_workers(spawning: Spawning) -> None:
    write(spawning.folder, "heavy", "raise ImportError('no')")
    id = spawning.start("says.py", warm=True, late=("heavy",))
    assert spawning.outcome(id).out.startswith("rank 0 parent") and cold_reasons(spawning) == []


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
    assert running_threads(str(tmp_path), 10) == ["pt_main (a) b"]


def test_memory_that_forks_share_or_lack_counts(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "7f0000000000-7f0000001000 r--s 00000000 00:01 1 /usr/lib/locale/C.utf8\nSize:  4 kB\nVmFlags: rd mr me ms\n"
        "7f0000001000-7f0000002000 rw-p 00000000 00:00 0 [heap]\nVmFlags: rd wr mr mw me ac\n"
    )
    assert unforkable_memory(str(smaps)) == ""
    smaps.write_text("7f0000002000-7f0000003000 rw-s 00000000 00:01 2  /dev/shm/sem.mp-x (deleted)\n")
    assert unforkable_memory(str(smaps)) == "it has made memory that processes share (/dev/shm/sem.mp-x (deleted))"
    smaps.write_text("7f0000002000-7f0000004000 rw-p 00000000 00:00 0\nVmFlags: rd wr wf\n")
    assert unforkable_memory(str(smaps)) == "", "a page by which a library finds out that it was forked"
    smaps.write_text("7f0000002000-7f0000005000 rw-p 00000000 00:00 0\nVmFlags: rd wr wf\n")
    assert unforkable_memory(str(smaps)) == "it has memory that forks do not get (anonymous)"
    smaps.write_text("7f0000002000-7f0000003000 rw-p 00000000 00:00 0\nVmFlags: rd wr dc\n")
    assert unforkable_memory(str(smaps)) == "it has memory that forks do not get (anonymous)"


def test_memory_that_is_taken_from_forks_makes_a_script_cold(spawning: Spawning) -> None:
    own = "import mmap\nown = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)\nown.madvise(mmap.MADV_DONTFORK)\n"
    write(spawning.folder, "pinned", own + RANK + "own[0] = 1\nprint(own[0])")
    assert outs(spawning, "pinned.py", "0") == ["1\n"]
    assert ["memory that forks do not get" in reason for reason in cold_reasons(spawning)] == [True]


def test_a_worker_that_ends_takes_its_group_with_it(spawning: Spawning) -> None:
    write(
        spawning.folder,
        "leads",
        RANK + "import signal\nif os.fork() == 0:\n    print('up', flush=True)\n    signal.pause()\n"
        "os.read(os.open('go', os.O_RDONLY), 1)",
    )
    os.mkfifo(spawning.folder / "go")
    id = spawning.start("leads.py", warm=True)
    spawning.output_until(id, "up")
    pid = spawning.pid(id)
    assert (spawning.logs(id) / "pid").read_text() == f"{pid}\n"
    with Deaths([pid, *children(pid)]) as deaths:
        (spawning.folder / "go").write_text("x")
        assert spawning.outcome(id).code == 0
        assert deaths.survivors() == []


def test_a_cancelled_worker_does_not_wait_for_its_prefix(spawning: Spawning) -> None:
    write(spawning.folder, "uses", WAITS_FOR_ITSELF)
    ids = [spawning.start("uses.py", warm=True) for _ in range(2)]
    for id in ids:
        spawning.send(CancelSpawn(id))
        assert spawning.until(Ended, id) == Ended(id, -signal.SIGTERM)
        assert spawning.until(Spawned, id) == Spawned(id, 0)
        assert not spawning.logs(id).exists()


def test_a_cancelled_worker_does_not_wait_for_a_script_that_is_run_anew(spawning: Spawning) -> None:
    write(spawning.folder, "changes", SAYS)
    first = spawning.outcome(spawning.start("changes.py", warm=True))
    write(spawning.folder, "changes", WAITS_FOR_ITSELF)
    with spawning.at_once():  # the template has not said yet that the script has changed
        id = spawning.start("changes.py", warm=True)
        spawning.send(CancelSpawn(id))
    assert first.code == 0 and spawning.until(Ended, id, seconds=10) == Ended(id, -signal.SIGTERM)
    assert spawning.until(Spawned, id) == Spawned(id, 0)


def test_a_stopped_worker_is_not_forked_anew(spawning: Spawning) -> None:
    """It had said that it begins anew when the signal came, which nobody got."""
    write(spawning.folder, "heavy", "import os\nmode = os.environ.get('MODE')")
    write(
        spawning.folder,
        "sets",
        RANK + "sum(range(40_000_000))\nos.environ['MODE'] = rank\nimport signal\nsignal.pause()",
    )
    id = spawning.start("sets.py", warm=True, late=("heavy",))
    with Deaths([spawning.pid(id)]) as deaths, spawning.at_once():
        spawning.send(Signal(id, signal.SIGTERM))
        assert deaths.survivors() == []
    assert spawning.until(Ended, id, seconds=10) == Ended(id, -signal.SIGTERM)


def test_a_prefix_can_be_there_before_its_workers(spawning: Spawning) -> None:
    spawning.send(Prepare(spawning.prefix("says.py")))
    assert spawning.until(Prepared, 0) == Prepared(False)
    (prefix,) = children(spawning.process.pid)
    assert outs(spawning, "says.py", "0") == [f"rank 0 parent {prefix}\n"]


def test_a_script_that_comes_to_no_split_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    write(folder, "waits", "print('here', flush=True)\nwhile True:\n    pass")
    with Spawning(folder, patience_s=0.2) as spawning:
        id = spawning.start("waits.py", warm=True)
        spawning.until(StartedCold, id)
        spawning.output_until(id, "here")
        assert cold_reasons(spawning) == ["it runs for more than 0.2 s before it asks for its rank"]
        assert children(spawning.process.pid) == [spawning.pid(id)]


def test_a_script_that_waits_for_something_unseen_starts_cold(spawning: Spawning) -> None:
    write(spawning.folder, "waits_for_itself", WAITS_FOR_ITSELF)
    id = spawning.start("waits_for_itself.py", warm=True)
    spawning.until(StartedCold, id)
    spawning.output_until(id, "here")
    assert cold_reasons(spawning) == ["it waits before it asks for its rank"]


def test_the_death_of_a_prefix_is_that_of_its_workers(spawning: Spawning) -> None:
    for _ in range(3):
        ids = [spawning.start("waits.py", warm=True) for _ in range(2)]
        for id in ids:
            spawning.output_until(id, "up")
        (parent,) = children(spawning.process.pid)
        with Deaths([parent, *(spawning.pid(id) for id in ids)]) as deaths:
            os.kill(parent, signal.SIGKILL)
            assert [spawning.outcome(id).code for id in ids] == [-signal.SIGKILL] * 2
            assert deaths.survivors() == []
    id = spawning.start("waits.py", warm=True)
    spawning.output_until(id, "up")
    assert children(spawning.process.pid) == [spawning.pid(id)]
    assert cold_reasons(spawning) == ["its template died 3 times"]


def test_the_end_of_the_spawner_is_that_of_its_prefixes(spawning: Spawning) -> None:
    id = spawning.start("waits.py", warm=True)
    spawning.output_until(id, "up")
    prefixes = children(spawning.process.pid)
    with Deaths([*prefixes, spawning.pid(id)]) as deaths:
        spawning.process.kill()
        assert len(prefixes) == 1 and deaths.survivors() == []


def test_a_folder_that_is_not_there_is_refused_as_ever(spawning: Spawning) -> None:
    assert spawning.outcome(spawning.start("says.py", warm=True)).code == 0
    (spawning.folder.parent / "logs of work" / "2").write_text("no folder")
    id = spawning.start("says.py", warm=True)
    answer = spawning.until(SpawnRefused, id)
    assert isinstance(answer, SpawnRefused) and "Not a directory" in answer.detail


def test_an_interpreter_that_ends_before_its_script_begins_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AtOnce(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", AtOnce)
    answers: list[Answer] = []
    started: list[Spawn] = []
    with selectors.DefaultSelector() as selector:
        prefixes = Prefixes(selector, answers.append, started.append)
        spec = PrefixSpec(("/bin/true",), (), str(tmp_path), (), (), ())
        request = Spawn(1, ("python",), {}, str(tmp_path), str(tmp_path), spec)
        prefixes.spawn(request)
        assert started == []
        ((key, _),) = selector.select(60)
        prefixes.receive(key.data)
        assert not selector.get_map()
    assert answers == [StartedCold(1, "its process ended before it asked for its rank: exit 0")]
    assert started == [request]


CHANGES = {
    "a new value": ("os.environ['MODE'] = 'other'", ["MODE"]),
    "emptied for a moment": ("kept = dict(os.environ); os.environ.clear(); os.environ.update(kept)", []),
    "removed": ("del os.environ['MODE']", ["MODE"]),
    "the same value": ("os.environ['MODE'] = 'one'", []),
    "one twice, and another": ("for v in ('MODE', 'MODE', 'HOW'): os.environ[v] = os.environ[v] * 2", ["MODE", "HOW"]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_variable_that_a_late_import_has_read_may_not_change_unsaid(spawning: Spawning, what: str) -> None:
    write(spawning.folder, "late", "import os\nmode, how = os.environ['MODE'], os.environ['HOW']")
    change, said = CHANGES[what]
    acts = "open('acts', 'a').close()\n"
    write(spawning.folder, "changes", f"{RANK}{acts}{change}\nimport late\nprint(late.mode)\nraise SystemExit(3)")
    start = spawning.start("changes.py", warm=True, env={"MODE": "one", "HOW": "so"}, late=("late",))
    outcome = spawning.outcome(start)
    assert (outcome.code, outcome.out) == (3, "one\n")
    assert [line.split()[:2] for line in outcome.err.splitlines()] == [["flowdist:", name] for name in said]
    assert error_line(spawning.logs(start)) == "", "it is not why the script has failed"


def test_a_late_import_that_sets_variables_is_left_to_the_workers(spawning: Spawning) -> None:
    write(spawning.folder, "late", "import os\nos.environ['LEFT'] = 'left'")
    write(spawning.folder, "uses", RANK + "print(os.environ.get('LEFT'))\nimport late\nprint(os.environ.get('LEFT'))")
    outcome = spawning.outcome(spawning.start("uses.py", warm=True, late=("late",)))
    assert outcome.out.split() == ["None", "left"] and cold_reasons(spawning) == []


def test_what_a_late_import_has_set_is_set_at_the_first_step() -> None:
    late = Late([])
    late._left = {b"FLOWDIST_TEST_LEFT": (None, b"left"), b"FLOWDIST_TEST_OWN": (None, b"left")}
    os.environ["FLOWDIST_TEST_OWN"] = "the script's"
    try:
        late.leave_variables()
        assert (os.environ["FLOWDIST_TEST_LEFT"], os.environ["FLOWDIST_TEST_OWN"]) == ("left", "the script's")
    finally:
        for name in ("FLOWDIST_TEST_LEFT", "FLOWDIST_TEST_OWN"):
            os.environ.pop(name, None)


def test_modes_of_torch_do_not_see_the_look_at_its_generator() -> None:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    generators = Generators()
    with Functions(), Operators():
        generators.note_first()
        generators.before_import()
        assert seen == []
        torch.rand(1).numpy()
        assert seen != []
