"""Signals, failures and ends of a forked script: each start has its own, and a restart goes on from none of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.spawning import UNKNOWN, Spawning, both, cold_reasons, write

pytestmark = pytest.mark.real

RANK = "import os; rank = os.environ['RANK']\n"
COMPUTES = "sum(range(40_000_000))\n"
HIDDEN_CLOCK = "from datetime import datetime\nprint(datetime.now(), flush=True)\n"  # nobody sees this clock being read


@pytest.fixture
def spawning(tmp_path: Path) -> Iterator[Spawning]:
    folder = tmp_path / "work"
    folder.mkdir()
    with Spawning(folder) as spawning:
        yield spawning


STOPPED = """
import os, signal, sys
got = []
signal.signal(signal.SIGTERM, lambda *_: {handler})
signal.signal(signal.SIGUSR1, lambda *_: got.append("goes on"))
os.environ["RANK"]
sum(range(40_000_000))
print("up", flush=True)
while not got:
    pass
print("done", got, os.environ["MASTER_PORT"])
"""


@pytest.mark.parametrize(
    "handler", ["sys.exit(0)", "(open('stopped', 'a').close(), sys.exit(0))", "got.append('stops')"]
)
def test_a_restart_does_not_go_on_where_a_signal_has_led(spawning: Spawning, handler: str) -> None:
    write(spawning.folder, "stopped", STOPPED.format(handler=handler))
    outcomes = []
    for port, number in (("1", signal.SIGTERM), ("2", signal.SIGUSR1)):
        id = spawning.start("stopped.py", warm=True, env={"MASTER_PORT": port})
        spawning.output_until(id, "up")
        os.killpg(spawning.pid(id), number)
        outcomes.append(spawning.outcome(id))
    assert [outcome.code for outcome in outcomes] == [0, 0]
    assert outcomes[1].out == "up\ndone ['goes on'] 2\n"


@pytest.mark.parametrize(
    ("ends", "goes_on"),
    [
        ("raise MemoryError", False),
        ("os._exit(1)", False),
        ("try:\n    raise OSError\nexcept OSError:\n    open('acts', 'a').close()", False),
        ("import sys\nsys.excepthook = lambda *_: open('acts', 'a').close()\nraise OSError", False),
        ("try:\n    import missing\nexcept ImportError:\n    open('acts', 'a').close()", True),
    ],
    ids=["fails", "exits", "handles a failure", "hook", "handles what is missing"],
)
def test_a_restart_of_a_rank_tries_again_what_has_failed(spawning: Spawning, ends: str, goes_on: bool) -> None:
    write(spawning.folder, "fails", f"{RANK}{COMPUTES}{HIDDEN_CLOCK}{ends}")
    first, second = (spawning.outcome(spawning.start("fails.py", warm=True)) for _ in range(2))
    assert first.code == second.code and len(first.out) == len(second.out) > 20
    assert (first.out == second.out) is goes_on and cold_reasons(spawning) == []


@pytest.mark.parametrize(
    ("splits", "serves_again"),
    [
        ("raise OSError('it may pass')", False),
        ("import os\nos._exit(1)", False),
        (f"try:\n    raise OSError\nexcept OSError:\n    {RANK}", False),
        (f"import signal\nsignal.signal(15, lambda *_: 0)\nsignal.raise_signal(15)\n{RANK}", False),
        (f"try:\n    import missing\nexcept ImportError:\n    {RANK}", True),
    ],
    ids=["fails", "exits", "handles a failure", "handles a signal", "handles what is missing"],
)
def test_a_script_that_has_failed_or_handled_a_signal_before_its_split_is_run_anew(
    spawning: Spawning, monkeypatch: pytest.MonkeyPatch, splits: str, serves_again: bool
) -> None:
    monkeypatch.setattr("tests.runtime.spawning.UNKNOWN", (*UNKNOWN, "FLOWDIST_GENERATION"))
    write(spawning.folder, "fails", f"{HIDDEN_CLOCK}{splits}")
    generations = [{"FLOWDIST_GENERATION": generation} for generation in "112"]
    outcomes = [spawning.outcome(spawning.start("fails.py", warm=True, env=env)) for env in generations]
    first, same, later = (outcome.out for outcome in outcomes)
    assert first == same and (first == later) is serves_again
    assert len({outcome.code for outcome in outcomes}) == 1 and cold_reasons(spawning) == []


NO_FILES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
files = []
try:
    while True:
        files.append(open("splits.py"))
except OSError:
    pass
"""
DEEP = """
import os
def deep():
    try:
        return deep()
    except RecursionError:
        return os.environ["RANK"]
"""


@pytest.mark.parametrize(
    ("before", "rank"), [(NO_FILES, "os.environ['RANK']"), (DEEP, "deep()")], ids=["files", "deep"]
)
def test_a_failure_of_a_split_never_reaches_the_script(spawning: Spawning, before: str, rank: str) -> None:
    tail = f"try:\n    rank = {rank}\nexcept OSError:\n    rank = 'none'\nfiles = []\n"
    write(spawning.folder, "splits", f"{before}{tail}open('ran', 'a').write(f'{{rank}} ')")
    assert spawning.outcome(spawning.start("splits.py", warm=True, env={"RANK": "1"})).code == 0
    assert (spawning.folder / "ran").read_text() == "1 "
    assert [reason.partition(" at ")[0] for reason in cold_reasons(spawning)] == ["OSError"] * (before == NO_FILES)


CHILDREN = {
    "handled": "signal.signal(signal.SIGCHLD, lambda *_: got.append(1))",
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})",
}


@pytest.mark.parametrize("how", CHILDREN)
def test_no_script_gets_sigchld_of_flowdists_forks(spawning: Spawning, how: str) -> None:
    ends = "open('acts', 'a').close()\nprint(got, signal.sigpending())"
    write(spawning.folder, "early", f"import signal\ngot = []\n{CHILDREN[how]}\n{RANK}{ends}")
    write(spawning.folder, "late", f"{RANK}import signal\ngot = []\n{CHILDREN[how]}\n{COMPUTES}{ends}")
    for script in ("early.py", "late.py"):
        cold, warm = both(spawning, script, may_be_cold=True)
        assert warm == cold and cold.out == "[] set()\n"
    assert cold_reasons(spawning) == ["it handles SIGCHLD"]  # of the early one


def test_a_signal_that_waits_is_not_lost(spawning: Spawning) -> None:
    waits = "signal.pthread_sigmask(signal.SIG_BLOCK, {10})\nsignal.raise_signal(10)\n"
    head = "import os, signal\ngot = []\nsignal.signal(10, lambda *_: got.append(1))\n"
    tail = "open('acts', 'a').close()\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, {10})\nprint(got)"
    write(spawning.folder, "early", f"{head}{waits}{RANK}{tail}")
    write(spawning.folder, "late", f"{head}{RANK}{waits}{COMPUTES}{tail}")
    for script in ("early.py", "late.py"):
        outcomes = [spawning.outcome(spawning.start(script, warm=True)) for _ in range(2)]
        assert [outcome.out for outcome in outcomes] == ["[1]\n"] * 2
    assert cold_reasons(spawning) == ["a signal that it blocks waits for it"]


TRACED = """
import builtins, cProfile, io, os, pstats, sys
names, opened, plain_open = [], [], open
def note(frame, event, arg):
    if event == "call":
        names.append(frame.f_code.co_name)
def patched(*args, **named):
    opened.append(args)
    return plain_open(*args, **named)
builtins.open = patched
sys.setprofile(note)
sys.settrace(note)
rank = os.environ["RANK"]
sys.settrace(None)
sys.setprofile(None)
profile = cProfile.Profile()
profile.enable()
rank = os.environ["LOCAL_RANK"]
profile.disable()
builtins.open = plain_open
print(names, opened, sorted(name for _, _, name in pstats.Stats(profile, stream=io.StringIO()).stats))
"""


def test_hooks_of_the_script_do_not_see_flowdist(spawning: Spawning) -> None:
    write(spawning.folder, "traced", TRACED)
    cold, warm = both(spawning, "traced.py")
    assert warm == cold and cold.code == 0 and "'__getitem__'" in cold.out
