"""Cases of PyTorch's test/distributed/elastic/multiprocessing: processes, streams and signals."""

from __future__ import annotations

import pytest

import flowdist
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.errors import FlowdistError, JobFailed
from flowdist.runtime.processes.spawn_protocol import describe_exit
from tests.peers.case import Case, holds
from tests.peers.launcher import ended, fails, four, ran, refused
from tests.peers.runs import Done, Runs
from tests.torchrun.harness import outcome_of

PEER = "multiprocessing/api_test.py"
SIGNALS = "multiprocessing/test_api.py"


def masks(text: str, procs: int = 1) -> dict[int, int]:
    """Return the masks that `-r` with this value stands for, by local rank."""
    return dict(outcome_of(f"--nproc-per-node={procs}", "-r", text, "x.py").streams.redirects)


def bad_masks() -> None:
    for bad in ("0:1,", "11", "0:1,1", "1,0:1"):
        refused(["-r", bad, "x.py"], "cannot be read")


def tee(runs: Runs) -> Done:
    """Return a run whose ranks have different streams on the terminal."""
    return runs.torchrun("tee", "--nproc-per-node=2 --log-dir=logs -r 0:2,1:0 -t 0:1,1:2 worker.py touch {out}")


def tee_and_redirect(runs: Runs) -> None:
    done = tee(runs)
    ran(done, {"0", "1"})
    lines = done.text.splitlines()
    assert "[default0]:out of 0" in lines and "err of 0" not in lines and "[default0]:err of 0" not in lines
    assert "out of 1" in lines and "[default1]:err of 1" in lines
    for rank in ("0", "1"):
        folder = done.logs / "attempt_0" / rank
        assert (folder / "stdout.log").read_text() == f"out of {rank}\nend of {rank}\n"
        assert (folder / "stderr.log").read_text() == f"err of {rank}\n"


def exits(runs: Runs) -> None:
    done = runs.torchrun("138", "--nproc-per-node=2 worker.py 138 {out}")
    fails(done)
    assert "signal SIGUSR1" in done.text and not list(done.logs.rglob("error.json"))  # 138 is 128 + 10


def segfaults(runs: Runs) -> None:
    done = runs.torchrun("segfault", "--nproc-per-node=2 worker.py segfault {out}")
    fails(done)
    assert "signal SIGSEGV" in done.text


def large(runs: Runs) -> None:
    def make(folder: object) -> list[dict[int, str]]:
        return flowdist.launch(many, (200_000,), procs=4, runs=str(folder), quiet=True, start="spawn")

    assert [len(result) for result in runs.once("large", make)] == [200_000] * 4


def many(count: int) -> dict[int, str]:
    return {number: f"test{number}" for number in range(count)}


def raises(runs: Runs) -> None:
    def make(folder: object) -> str:
        with pytest.raises((RuntimeError, JobFailed)) as caught:
            flowdist.launch(sad, ("hello",), procs=2, runs=str(folder), quiet=True, start="spawn")
        return str(caught.value)

    assert "hello" in runs.once("raises", make)


def sad(text: str) -> None:
    raise RuntimeError(text)


def no_script(runs: Runs) -> None:
    assert runs.torchrun("no-script", "does_not_exist.py").code == 2


def file_as_log_dir() -> None:
    refused([f"--log-dir={__file__}", "x.py"], "it is a file")


def no_procs() -> None:
    with pytest.raises((TopologyProblems, ValueError, FlowdistError)):
        flowdist.launch(sad, procs=0)


SHELL_CODE = "docs/restarts.md: Exit code 128+n is signal n"
CASES = [
    Case(
        PEER,
        "test_from_value",
        "0, 1, 2 and 3 are the masks of both streams",
        lambda runs: holds([masks(each)[0] for each in "0123"] == [0, 1, 2, 3]),
    ),
    Case(
        PEER,
        "test_from_value_map",
        "0:1 and 0:1,1:1 are masks by local rank",
        lambda runs: holds(masks("0:1") == {0: 1} and masks("0:1,1:1") == {0: 1, 1: 1}),
    ),
    Case(PEER, "test_from_str_bad_input", "0:1, and 11 and 0:1,1 and 1,0:1 are refused", lambda runs: bad_masks()),
    Case(PEER, "test_to_map", "one mask is for all local ranks", lambda runs: holds(masks("1", 2) == {0: 1, 1: 1})),
    Case(PEER, "test_invalid_log_dir", "a log folder that is a file is refused", lambda runs: file_as_log_dir()),
    Case(
        PEER,
        "test_args_env_len_mismatch",
        "fewer arguments than processes is an error: no processes at all are refused",
        lambda runs: no_procs(),
    ),
    Case(
        PEER,
        "test_void_function",
        "processes that return nothing succeed",
        lambda runs: ran(four(runs), {*"0123"}),
        is_real=True,
    ),
    Case(PEER, "test_function_large_ret_val", "four results of 200,000 entries come back", large, is_real=True),
    Case(PEER, "test_function_raise", "an exception of one of two processes is the caller's", raises, is_real=True),
    Case(
        PEER,
        "test_binary_exit",
        "exit code 138 is the failure, without an error file; here it is read as SIGUSR1",
        exits,
        "differs",
        SHELL_CODE,
        True,
    ),
    Case(PEER, "test_binary_signal", "a segmentation fault is named", segfaults, is_real=True),
    Case(PEER, "test_binary_incorrect_entrypoint", "a script that is not there is refused", no_script, is_real=True),
    Case(
        PEER,
        "test_binary_redirect_and_tee",
        "masks by rank: stderr of rank 0 to its file alone, stdout tee'd; rank 1 the other way",
        tee_and_redirect,
        is_real=True,
    ),
    Case(
        PEER,
        "test_binary",
        "without redirection both streams are shown",
        lambda runs: holds("out of 3" in four(runs).text and "err of 3" in four(runs).text),
        is_real=True,
    ),
    Case(
        PEER,
        "test_no_zombie_process_binary",
        "SIGTERM of the launcher leaves no worker",
        ended,
        is_real=True,
    ),
    Case(
        PEER,
        "test_multiprocessing_context_poll_raises_exception",
        "a process that ended by signal 1 is reported as SIGHUP",
        lambda runs: holds(describe_exit(-1).endswith("HUP")),
    ),
    Case(
        SIGNALS,
        "test_start_registers_default_signals",
        "the four default signals are accepted",
        lambda runs: outcome_of("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "x.py"),
    ),
    Case(
        SIGNALS,
        "test_start_registers_custom_signals",
        "SIGUSR1 and SIGUSR2 end the job",
        lambda runs: refused(["--signals-to-handle=SIGTERM,SIGUSR1,SIGUSR2", "x.py"], "forwards no SIGUSR1"),
        "refused",
        "docs/torchrun.md: others, such as SIGUSR1, are refused",
    ),
    Case(
        SIGNALS,
        "test_start_handles_invalid_signals",
        "a signal that does not exist is a warning there, and an error here",
        lambda runs: refused(["--signals-to-handle=SIGTERM,INVALID_SIGNAL", "x.py"], "forwards no INVALID_SIGNAL"),
        "differs",
        "docs/torchrun.md: others, such as SIGUSR1, are refused",
    ),
]
