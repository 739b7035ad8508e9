"""The root cause shows what the failed worker has left: its traceback or its last lines."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

import flowdist
from flowdist import Topology
from flowdist.control.agent.attempts import exit_event
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.agent.workers import WorkerExits
from flowdist.runtime.processes.spawn_protocol import INJECTED_EXIT
from flowdist.runtime.run_folder.remote_error_report import LINES_MAX
from flowdist.runtime.run_folder.root_cause import root_cause_text
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of

TRAINER = ReplicaId("trainer", 0)
START = StartReplica("node0", TRAINER, 1, "trainer", 1, 0, 1, 0, 1, 0, 1, 0, "", 0)
WARNING = "/site-packages/tqdm/std.py:1: UserWarning: an option has no effect\n"


def ended(folder: Path, exited: ReplicaExited | None = None, **stderr: str) -> list[str]:
    """The root cause of a job of one replica with several workers, `_0`, `_1`, ..., by what they have written."""
    t = Topology("job", nodes=1)
    t.role("trainer", "true", restart=None)
    job = simulate(graph_of(t), "trainer/0@10s").job
    job.replicas[TRAINER].exited = exited
    for number, text in stderr.items():
        worker = folder / "trainer/0/attempt_1" / number.removeprefix("_")
        worker.mkdir(parents=True)
        (worker / "stderr.log").write_text(text)
    return root_cause_text(job, folder).splitlines()


def shown(folder: Path, stderr: str) -> list[str]:
    return ended(folder, ReplicaExited(TRAINER, 1, "exit", 1), _0=stderr)


def test_the_last_lines_of_a_worker_without_traceback(tmp_path: Path) -> None:
    where = f"Root cause, from {tmp_path / 'trainer/0/attempt_1/0'}:"
    assert shown(tmp_path, "one\n\ntwo\n") == [where, "  one", "  two"]


SITE = "".join(f'  File "/x/site-packages/http/client.py", line {n}, in call\n    return call()\n' for n in range(9))
STDLIB = "".join(f'  File "/usr/lib/python3.12/json/decoder.py", line {n}, in scan\n    scan()\n' for n in range(9))
OWN = f'  File "{Path(flowdist.__file__).parent}/worker/model.py", line 316, in run\n    it.step(step)\n'
MINE = [
    f'  File "/me/{file}.py", line {n}, in {name}\n    {name}()\n'
    for n, file, name in ((3, "train", "main"), (9, "model", "step"))
]
BEGINS, ERROR = "Traceback (most recent call last):\n", "ValueError: no such batch\n"


@pytest.mark.parametrize("mark", ["", "[rank0]: "])
def test_a_long_traceback_has_all_frames_of_the_user_and_the_one_that_raised(tmp_path: Path, mark: str) -> None:
    stderr = WARNING + BEGINS + MINE[0] + OWN + MINE[1] + SITE + STDLIB + ERROR
    _, *lines = shown(tmp_path, "".join(f"{mark}{line}\n" for line in stderr.splitlines()))
    last = STDLIB.splitlines()[-2:]
    wanted = [*(BEGINS + MINE[0]).splitlines(), "... (2 lines)", *MINE[1].splitlines(), "... (34 lines)", *last, ERROR]
    assert [line.removeprefix(f"  {mark}").strip() for line in lines] == [line.strip() for line in wanted]
    (tmp_path / "again").mkdir()
    excerpt = "".join(f"{line[2:]}\n" for line in lines)  # as a joined host sends it
    assert shown(tmp_path / "again", excerpt)[1:] == lines


def test_frames_of_a_traceback_with_colours_are_told_apart(tmp_path: Path) -> None:
    """Python 3.13 writes such a traceback where FORCE_COLOR is set."""
    frames = "".join((MINE[0], OWN, MINE[1], SITE, STDLIB))
    coloured = re.sub(r'"(.+)", line (\d+)', '\x1b[35m"\\1"\x1b[0m, line \x1b[35m\\2\x1b[0m', frames)
    _, *lines = shown(tmp_path, BEGINS + coloured + "\x1b[1;35mValueError\x1b[0m: \x1b[35mno such batch\x1b[0m\n")
    (tmp_path / "plain").mkdir()
    assert lines == shown(tmp_path / "plain", BEGINS + frames + ERROR)[1:]
    assert any("(34 lines)" in line for line in lines)


def test_the_exception_that_led_to_another_is_shown_with_its_frames(tmp_path: Path) -> None:
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    cause = BEGINS + MINE[0] + SITE + "KeyError: 7\n"
    _, *lines = shown(tmp_path, WARNING + cause + direct + BEGINS + MINE[1] + STDLIB + ERROR)
    texts = [line.strip() for line in lines]
    assert texts[0] == texts[8] == BEGINS.strip() and "KeyError: 7" in texts and texts[-1] == ERROR.strip()
    assert 'File "/me/train.py", line 3, in main' in texts and 'File "/me/model.py", line 9, in step' in texts


def test_a_traceback_that_is_long_without_libraries_loses_its_middle(tmp_path: Path) -> None:
    _, *lines = shown(tmp_path, BEGINS + 20 * MINE[0] + ERROR)
    assert len(lines) == LINES_MAX and "    ... (28 lines)" in lines and lines[-1] == f"  {ERROR.rstrip()}"


def test_a_missing_torch_comes_with_the_line_that_installs_it(tmp_path: Path) -> None:
    *_, help = shown(tmp_path, "ModuleNotFoundError: No module named 'torch'\n")
    assert help == f"help: install torch for the Python that runs the workers: {sys.executable} -m pip install torch"


def test_the_abort_of_torch_over_a_group_that_was_not_destroyed_is_explained(tmp_path: Path) -> None:
    *_, line, help = shown(tmp_path, "terminate called without an active exception\n")
    assert line == "  terminate called without an active exception"
    assert help.startswith("help: ") and help.endswith("end the script with dist.destroy_process_group()")


def test_the_log_of_the_worker_that_failed_first_is_quoted_and_no_other(tmp_path: Path) -> None:
    """The peers of a dead worker fail as well, and write more about it than the dead one could."""
    peers = "Traceback ...\nConnectionError: connection closed by peer\n"
    first = ReplicaExited(TRAINER, 1, "exit", 1, local_rank=10)
    place = tmp_path / "trainer/0/attempt_1"
    assert ended(tmp_path / "a", first, _0=peers, _2=peers, _10="KeyError: 7\n")[1:] == ["  KeyError: 7"]
    assert ended(tmp_path / "b", first, _0=peers, _2=peers, _10="") == []
    assert ended(tmp_path, None, _10="ten", _2="two") == [f"Root cause, from {place}/2:", "  two"]  # no report of it


def test_what_a_killed_worker_wrote_before_is_not_called_the_cause(tmp_path: Path) -> None:
    killed = ReplicaExited(TRAINER, 1, "signal", 0, "KILL", local_rank=1)
    place = tmp_path / "trainer/0/attempt_1/1"
    lines = [f"Last lines before SIGKILL, from {place}:", f"  {WARNING.rstrip()}"]
    assert ended(tmp_path, killed, _0="ConnectionError\n", _1=WARNING) == lines
    aborted = ReplicaExited(TRAINER, 1, "signal", 0, "ABRT", detail="what():  boom")
    assert ended(tmp_path / "x", aborted, _0="what():  boom\n")[0].startswith("Root cause, from ")


STACK = (
    'Current thread 0x00007f (most recent call first):\n  File "/a/train.py", line 3 in step\n\nExtension modules: a\n'
)
THROWN = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n"


@pytest.mark.parametrize(
    ("code", "stderr", "detail"),
    [
        (-signal.SIGKILL, WARNING, ""),
        (-signal.SIGKILL, "MemoryError\n", ""),
        (-signal.SIGTERM, THROWN, ""),  # of a child, perhaps: it does not end a process by SIGTERM
        (-signal.SIGINT, "Traceback ...\nKeyboardInterrupt\n", ""),
        (-signal.SIGSEGV, WARNING, ""),
        (
            -signal.SIGSEGV,
            f"Fatal Python error: Segmentation fault\n\n{STACK}",
            "Fatal Python error: Segmentation fault",
        ),
        (-signal.SIGABRT, WARNING, ""),
        (-signal.SIGABRT, f"{THROWN}{WARNING}", "what():  boom"),
        (-signal.SIGABRT, f"{THROWN}Fatal Python error: Aborted\n\n{STACK}", "what():  boom"),
        (
            -signal.SIGABRT,
            "terminate called without an active exception\n",
            "terminate called without an active exception",
        ),
        (
            -signal.SIGABRT,
            f"free(): invalid pointer\nFatal Python error: Aborted\n\n{STACK}",
            "free(): invalid pointer",
        ),
        (
            -signal.SIGABRT,
            f"a.out: a.c:3: f: Assertion `x' failed.\n{WARNING}",
            "a.out: a.c:3: f: Assertion `x' failed.",
        ),
        (1, f"{WARNING}ValueError: bad shape\n", "ValueError: bad shape"),
    ],
)
def test_the_reason_of_a_signal_is_what_was_written_about_it(
    tmp_path: Path, code: int, stderr: str, detail: str
) -> None:
    (tmp_path / "stderr.log").write_text(stderr)
    exited = WorkerExits(Mask()).describe(START, 0, code, tmp_path, was_killed=False)
    assert exited.detail == detail
    assert exit_event(START, exited).detail == detail


def test_an_injected_exit_code_has_no_reason_in_the_log(tmp_path: Path) -> None:
    (tmp_path / INJECTED_EXIT).write_text("3\n")
    (tmp_path / "stderr.log").write_text(WARNING)
    exited = WorkerExits(Mask()).describe(START, 0, -signal.SIGKILL, tmp_path, was_killed=False)
    assert (exited.exit_code, exited.signal, exited.detail) == (3, None, "")
