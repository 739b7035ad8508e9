"""`flowdist.launch`: results by rank, the worker's traceback in the caller, and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

import flowdist
from flowdist.errors import FlowdistError, JobFailed
from tests.runtime.harness import MARK, Deaths, marked

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
no_cloudpickle = pytest.mark.skipif(importlib.util.find_spec("cloudpickle") is not None, reason="cloudpickle is there")


def rank_and(*args: object, **kwargs: object) -> tuple[object, ...]:
    return int(os.environ["RANK"]), os.environ["WORLD_SIZE"], os.environ.get("WHO"), args, kwargs


def set_who() -> None:
    os.environ["WHO"] = f"setup of {os.environ['RANK']} after {os.environ['WHO']}"


class NeedsTwo(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail(how: str) -> object:
    if os.environ["RANK"] == "0":
        time.sleep(60)  # it is stopped when the other has failed
    if how == "value":
        raise ValueError("bad shape")
    if how == "two":
        raise NeedsTwo(1, 2)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return lambda: how


def flaky() -> str:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("the first time")
    return f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}"


def mean_rank() -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = torch.ones(1) * dist.get_rank()
    dist.all_reduce(rank)
    size = dist.get_world_size()
    dist.destroy_process_group()
    return float(rank) / size


class Reluctant:
    """A tensor that is slow to free, for a thread of gloo that holds it last."""

    freed = threading.Event()

    def __del__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.freed.set()
            for _ in range(10**7):
                pass


def leave_a_tensor_with_gloo(dropped: Path) -> str:
    """Rank 0 ends when a thread of gloo has begun to free its tensor, and the process group is still there."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    if dist.get_rank() == 1:
        dropped.read_text()
        dist.all_reduce(tensor)
        return "waited"
    tensor.held = Reluctant()  # type: ignore[attr-defined]
    dist.all_reduce(tensor, async_op=True)
    del tensor
    dropped.write_text("now the other thread is the only one that holds it")
    assert Reluctant.freed.wait(60)
    return "left"


@pytest.mark.slow
def test_what_each_rank_returns_is_returned_in_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = flowdist.launch(
        rank_and, (1, "two"), {"three": [3]}, procs=3, setup=set_who, env={"WHO": "${rank}"}, runs=tmp_path, quiet=True
    )
    assert results == [(rank, "3", f"setup of {rank} after ${{rank}}", (1, "two"), {"three": [3]}) for rank in range(3)]
    assert capfd.readouterr() == ("", "")


def test_one_process_is_this_process(tmp_path: Path) -> None:
    before = dict(os.environ)
    assert flowdist.launch(os.getpid, procs=1, runs=tmp_path) == [os.getpid()]
    assert flowdist.launch(rank_and, (1,), env={"WHO": "me"}, setup=set_who) == [
        (0, "1", "setup of 0 after me", (1,), {})
    ]
    with pytest.raises(ZeroDivisionError):
        flowdist.launch(lambda: 1 // 0)
    assert dict(os.environ) == before and not list(tmp_path.iterdir())


def test_no_connection_takes_the_port_of_one_process_before_its_group_does() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    (port,) = flowdist.launch(os.environ.get, ("MASTER_PORT",))
    assert port is not None and int(port) not in range(first, last + 1)


@pytest.mark.slow
def test_what_a_child_raises_is_raised_here_with_its_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="bad shape") as caught:
        flowdist.launch(fail, ("value",), procs=2, runs=tmp_path)
    cause = str(caught.value.__cause__)
    assert "in rank 1 of 2" in cause and 'raise ValueError("bad shape")' in cause and "launched.py" not in cause
    shown = capfd.readouterr().err
    assert "[worker/0.1] ValueError: bad shape" in shown and "launched.py" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("two", JobFailed, "rank 1 raised tests.launching.test_launch.NeedsTwo: 1 and 2"),
        ("kill", JobFailed, "worker/0 failed on node0: signal SIGKILL"),
        ("lambda", TypeError, "the function returned a function, which cannot be pickled"),
    ],
)
def test_a_result_that_cannot_be_pickled_is_an_error(
    tmp_path: Path, how: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        flowdist.launch(fail, (how,), procs=2, runs=tmp_path, quiet=True)


@pytest.mark.slow
def test_a_failure_restarts_all_and_results_are_those_of_the_last_time(tmp_path: Path) -> None:
    assert flowdist.launch(flaky, procs=2, max_restarts=1, runs=tmp_path, quiet=True) == ["attempt 1", "attempt 1"]


@pytest.mark.slow
@needs_torch
def test_a_worker_that_has_done_its_work_ends_well_whatever_gloo_still_holds(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dropped")
    assert flowdist.launch(leave_a_tensor_with_gloo, (tmp_path / "dropped",), procs=2, runs=tmp_path) == [
        "left",
        "waited",
    ]


@pytest.mark.slow
@needs_torch
def test_the_processes_are_one_world_and_so_is_one(tmp_path: Path) -> None:
    assert flowdist.launch(mean_rank, procs=2, runs=tmp_path) == [0.5, 0.5]
    code = "import flowdist, tests.launching.test_launch as t; print(flowdist.launch(t.mean_rank))"
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[0.0]\n"


def test_an_impossible_restart_policy_is_an_error_in_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError) as caught:
        flowdist.launch(os.getpid, procs=2, max_restarts=-1, runs=tmp_path)
    assert any("max_restarts=-1 is less than 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("taken", ["runs", "runs/below"])
def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, taken: str) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(FlowdistError, match="the folder of the run cannot be made in ") as caught:
        flowdist.launch(os.getpid, procs=2, runs=tmp_path / taken)
    assert "--runs DIR" in caught.value.help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"procs": 0}, "procs=0 is no number from 1"),
        ({"procs": True}, "procs=True is no number from 1"),
        ({"procs": "2"}, "procs='2' is no number from 1"),
        ({"procs": 2, "args": 5}, "args=5 is no tuple of arguments"),
        ({"procs": 1, "args": "abc"}, "args='abc' is no tuple of arguments"),
        ({"procs": 1, "max_restarts": 1}, "procs=1 runs in this process, which nothing can restart"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(FlowdistError, match=message) as caught:
        flowdist.launch(os.getpid, **arguments)
    assert caught.value.help


@no_cloudpickle
def test_a_function_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowdistError, match="<lambda> cannot be sent to the workers") as caught:
        flowdist.launch(lambda: 3, procs=2, runs=tmp_path)
    assert "install cloudpickle" in caught.value.help and not list(tmp_path.iterdir())


def run_script(folder: Path, text: str, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    run = [sys.executable, *(["-"] if stdin else ["script.py", "argument"])]
    return subprocess.run(run, cwd=folder, input=text if stdin else "", capture_output=True, text=True, check=False)


SCRIPT = """
import os, sys, flowdist
def work(x):
    return os.environ["RANK"], x, sys.argv[1:], os.getcwd(), __name__
"""


def test_a_script_launches_its_own_functions(tmp_path: Path) -> None:
    done = run_script(
        tmp_path, SCRIPT + 'if __name__ == "__main__":\n    print(flowdist.launch(work, (work,), procs=2)[1][2:])\n'
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"(['argument'], '{tmp_path}', '__mp_main__')\n"
    assert (tmp_path / "runs/latest/worker/0/attempt_1/1/stdout.log").exists()


def test_a_script_without_a_guard_is_refused_and_starts_nothing_endless(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT + "flowdist.launch(work, (1,), procs=2)\n")
    assert done.returncode == 1 and "was called in one of its own workers" in done.stderr
    assert len(list((tmp_path / "runs").glob("*/graph.json"))) == 2  # one run, and `latest`


@no_cloudpickle
def test_a_function_of_a_prompt_is_refused(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT + "flowdist.launch(work, (1,), procs=2)\n", stdin=True)
    assert "work cannot be sent to the workers: it is defined in a notebook or at a prompt" in done.stderr


WAITS = """
import time, flowdist
def work():
    print("up", flush=True)
    time.sleep(600)
if __name__ == "__main__":
    flowdist.launch(work, procs=2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_launch_whose_process_ends(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-u", "script.py"],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "up" in process.stdout.readline() and "up" in process.stdout.readline()
        with Deaths([pid for pid in marked(mark) if pid != process.pid]) as deaths:
            process.send_signal(number)
            assert deaths.survivors() == []
        assert process.wait() == -number and marked(mark) == []


@pytest.mark.slow
def test_with_cloudpickle_anything_can_be_launched(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    base = 5
    assert flowdist.launch(lambda x: base + x, (1,), procs=2, runs=tmp_path, quiet=True) == [6, 6]
    text = SCRIPT + "print(flowdist.launch(work, (1,), procs=2, quiet=True)[1][:2])\n"
    assert run_script(tmp_path, text, stdin=True).stdout == "('1', 1)\n"
