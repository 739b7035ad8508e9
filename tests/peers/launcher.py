"""Cases of PyTorch's test/distributed/launcher: test_run.py, api_test.py and test_api.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import flowdist
from tests.peers.case import Case, holds
from tests.peers.runs import Done, Runs
from tests.torchrun.harness import outcome_of, what_becomes_of

RUN, API, SIGNALS = "launcher/test_run.py", "launcher/api_test.py", "launcher/test_api.py"
FOUR = {*"0123"}
COMMON = "--monitor-interval=1 --start-method=spawn"


def four(runs: Runs) -> Done:
    """Return a run of one node with four workers, which does nothing else."""
    line = f"--nnodes=1 --nproc-per-node=4 --rdzv-id=job7 {COMMON} worker.py touch {{out}} --mine=$local_rank"
    return runs.torchrun("four", line)


def shell(runs: Runs) -> Done:
    """Return a run of a shell script, whose options all come from PET_ variables and whose output is tee'd."""
    names = {"NNODES": "1", "NPROC_PER_NODE": "4", "RDZV_ID": "job8", "MONITOR_INTERVAL": "1", "START_METHOD": "spawn"}
    env = {f"PET_{name}": value for name, value in (names | {"NO_PYTHON": "1", "MODULE": "0"}).items()}
    line = "--redirect=3 --tee=3 ./worker.sh {out}"
    return runs.torchrun("shell", line, env | {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: "})


def elastic(runs: Runs) -> Done:
    """Return a run of one of two hosts, whose timers are quoted as in PyTorch's test."""
    conf = "--rdzv-conf='join_timeout=30,last_call_timeout=1,timeout=5'"
    line = f"--nnodes=1:2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=localhost:{{port}} {conf}"
    return runs.torchrun("elastic", f"{line} --rdzv-id=job9 {COMMON} worker.py touch {{out}}")


def two_hosts(runs: Runs) -> list[Done]:
    """Return both runs of a job with two hosts on this machine."""
    line = "--nnodes=2:2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=localhost:{port} --rdzv_conf=timeout=5"
    return runs.both("two-hosts", f"{line} --rdzv-id=job10 {COMMON} worker.py touch {{out}}")


def sad(runs: Runs) -> Done:
    """Return a run whose first worker fails, below a launcher that names an error file."""
    line = "--nproc-per-node=2 --max-restarts=0 worker.py raise {out}"
    return runs.torchrun("sad", line, {"TORCHELASTIC_ERROR_FILE": "outer.json"})


def by_tcp(runs: Runs) -> Done:
    """Return a run whose workers name the store by its port."""
    line = "--run-path --nnodes=1 --nproc-per-node=4 --master-addr=localhost --master-port={port} --monitor-interval=1"
    return runs.torchrun("tcp", f"{line} sum.py tcp://localhost:{{port}}")


def ran(done: Done, ranks: set[str]) -> None:
    """Assert that a run has succeeded, that exactly these ranks have run, and that nothing is left."""
    assert (done.code, done.ranks, done.left) == (0, ranks, []), done.text


def refused(words: Sequence[str], message: str, env: Mapping[str, str] | None = None, gpus: Sequence[str] = ()) -> None:
    """Assert that a command line of torchrun is refused with this message."""
    became = what_becomes_of(words, env, gpus)
    assert became.outcome is None and message in became.refused, became


def no_python_and_module(env: Mapping[str, str] | None = None) -> None:
    words = [] if env else ["--no-python", "--module"]
    refused([*words, "test_script.sh"], "it does not go with --module", env)


def procs(text: str, gpus: Sequence[str] = (), cpus: int = 7) -> int:
    """Return how many workers --nproc-per-node starts on a machine with these GPUs and cores."""
    return outcome_of(f"--nproc-per-node={text}", "x.py", gpus=gpus, cpus=cpus).role.procs


def three_gpus() -> None:
    gpus = ("0", "1", "2")
    assert (procs("auto", gpus), procs("gpu", gpus)) == (3, 3)


def nodes() -> None:
    def both(text: str) -> tuple[int, int]:
        role = outcome_of(f"--nnodes={text}", "x.py").role
        return role.min_replicas, role.max_replicas

    assert (both("1"), both("2:20")) == ((1, 1), (2, 20))
    refused(["--nnodes=2:20:30", "x.py"], "neither N nor MIN:MAX")


def tee(runs: Runs) -> None:
    ran(shell(runs), FOUR)
    assert all(f"[rank{rank}]: creating " in shell(runs).text for rank in range(4))


def virtual() -> None:
    role = outcome_of("--nproc-per-node=2", "--virtual-local-rank", "x.py", gpus=("0", "1")).role
    assert role.virtual_local_rank and not outcome_of("--nproc-per-node=2", "x.py").role.virtual_local_rank


def fails(done: Done) -> None:
    assert done.code == 1 and done.left == [] and "FAILED" in done.text, done.text


def function_results(runs: Runs) -> None:
    def make(folder: Any) -> list[int]:
        return flowdist.launch(ten_and_rank, procs=4, runs=folder, quiet=True, start="spawn")

    assert runs.once("function", make) == [10, 11, 12, 13]


def ten_and_rank() -> int:
    import os

    return 10 + int(os.environ["RANK"])


def entry(*words: str) -> str:
    return outcome_of(*words).graph.name


def outer_file(runs: Runs) -> None:
    fails(sad(runs))
    content = json.loads((sad(runs).folder / "outer.json").read_text())
    assert content["message"]["message"] == "RuntimeError: sad" and content["message"]["errorCode"] == 1


def summed(done: Done) -> None:
    assert done.code == 0 and done.text.count("sum 6 True") == 4 and done.left == [], done.text


def stopped(runs: Runs) -> Done:
    """Return a run whose launcher gets SIGTERM while its workers wait."""
    return runs.torchrun("stopped", "--nproc-per-node=2 worker.py wait {out}", stop=True)


def ended(runs: Runs) -> None:
    assert stopped(runs).code == 130 and stopped(runs).left == [] and "end of" not in stopped(runs).text


def local_ranks(runs: Runs) -> None:
    arguments = {rank: told["argv"][3] for rank, told in four(runs).told.items()}
    assert arguments == {rank: f"--mine={rank}" for rank in range(4)}


ETCD = "docs/torchrun.md: others, such as `etcd`, are refused"
CASES = [
    Case(
        RUN,
        "test_launch_user_script_python",
        "one node, four workers: each rank runs once",
        lambda runs: ran(four(runs), FOUR),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_user_script_python_caffe2_bc",
        "--master-addr, --master-port and --node-rank of one node: four workers run",
        lambda runs: summed(by_tcp(runs)),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_user_script_bash",
        "--no-python with --module is refused",
        lambda runs: no_python_and_module(),
    ),
    Case(
        RUN,
        "test_launch_user_script_bash (2)",
        "--no-python: a shell script runs four times",
        lambda runs: ran(shell(runs), FOUR),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_user_script_default_nproc",
        "without --nproc-per-node there is one worker",
        lambda runs: holds(outcome_of("--no-python", "x.sh").role.procs == 1),
    ),
    Case(
        RUN,
        "test_launch_with_env_vars",
        "PET_NO_PYTHON with PET_MODULE=1 is refused",
        lambda runs: no_python_and_module({"PET_NO_PYTHON": "1", "PET_MODULE": "1"}),
    ),
    Case(
        RUN,
        "test_launch_with_env_vars (2)",
        "all options from PET_ variables, PET_MODULE=0: four ranks run",
        lambda runs: ran(shell(runs), FOUR),
        is_real=True,
    ),
    Case(
        RUN,
        "test_nproc_launch_auto_configurations",
        "auto without a GPU is the number of cores",
        lambda runs: holds(procs("auto") == 7),
    ),
    Case(
        RUN,
        "test_nproc_launch_number_configurations",
        "a number is that number",
        lambda runs: holds(procs("4") == 4),
    ),
    Case(
        RUN,
        "test_nproc_launch_unknown_configurations",
        "--nproc-per-node=unknown is refused",
        lambda runs: refused(["--nproc-per-node=unknown", "x.py"], "no 'unknown'"),
    ),
    Case(RUN, "test_nproc_gpu_launch_configurations", "auto and gpu with three GPUs are 3", lambda runs: three_gpus()),
    Case(
        RUN,
        "test_nproc_xpu_launch_configurations",
        "xpu with three of them is 3",
        lambda runs: refused(["--nproc-per-node=xpu", "x.py"], "no 'xpu'"),
        "refused",
        "docs/torchrun.md: other devices, such as `xpu`, are refused",
    ),
    Case(
        RUN,
        "test_launch_elastic",
        "one host of 1:2, c10d, quoted --rdzv-conf: its four workers run",
        lambda runs: ran(elastic(runs), FOUR),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_elastic_worker_raise_exception",
        "a worker that raises fails the launcher",
        lambda runs: fails(sad(runs)),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_standalone",
        "--standalone: a run of its own",
        lambda runs: holds(outcome_of("--standalone", "--nproc-per-node=4", "x.py").rendezvous is None),
    ),
    Case(
        RUN,
        "test_launch_run_path",
        "--run-path: four workers run",
        lambda runs: summed(by_tcp(runs)),
        is_real=True,
    ),
    Case(
        RUN,
        "test_launch_elastic_multiple_agents",
        "two agents of four workers: eight ranks, both end with 0",
        lambda runs: [ran(done, {str(rank) for rank in range(8)}) for done in two_hosts(runs)],
        is_real=True,
    ),
    Case(RUN, "test_min_max_nodes_parse", "1 is 1:1, 2:20 is a range, 2:20:30 is refused", lambda runs: nodes()),
    Case(
        RUN,
        "test_is_torchelastic_launched",
        "torch.distributed.is_torchelastic_launched() is True in a worker",
        lambda runs: summed(by_tcp(runs)),
        is_real=True,
    ),
    Case(
        RUN,
        "test_is_torchelastic_launched_with_logs_spec_defined",
        "a LogsSpecs of another package is used",
        lambda runs: refused(["--logs_specs=default", "x.py"], "--logs-specs default cannot be honoured"),
        "refused",
        "docs/torchrun.md: plug-ins of torch's agent have nothing to plug into",
    ),
    Case(
        RUN,
        "test_logs_logs_spec_entrypoint_must_be_defined",
        "--logs_specs=DOESNOT_EXIST is refused",
        lambda runs: refused(["--logs_specs=DOESNOT_EXIST", "x.py"], "cannot be honoured"),
    ),
    Case(
        RUN,
        "test_init_method_tcp_with_torchelastic",
        "init_method=tcp://localhost:PORT with --master-port=PORT: the sum over four ranks is right",
        lambda runs: summed(by_tcp(runs)),
        is_real=True,
    ),
    Case(
        RUN,
        "test_init_method_env_with_torchelastic",
        "init_method=env:// with --master-port: the sum over four ranks is right",
        lambda runs: summed(runs.torchrun("env", "--run-path --nproc-per-node=4 --master-port={port} sum.py env://")),
        is_real=True,
    ),
    Case(
        RUN,
        "test_capture_logs_using_default_logs_specs",
        "--redirect=3 --tee=3 and a template: each line has its rank as prefix",
        tee,
        is_real=True,
    ),
    Case(RUN, "test_virtual_local_rank", "--virtual-local-rank: each worker sees device 0", lambda runs: virtual()),
    Case(
        API,
        "test_launch_script_python",
        "the parent's variables are those of the workers, too",
        lambda runs: holds({told["env"]["TEST_SENTINEL_PARENT"] for told in four(runs).told.values()} == {"FOOBAR"}),
        is_real=True,
    ),
    Case(
        API,
        "test_launch_script_python_local_rank_transfer",
        "the local rank is passed as an argument",
        local_ranks,
        is_real=True,
    ),
    Case(
        API,
        "test_launch_script_bash",
        "a program that is no Python script runs four times",
        lambda runs: ran(shell(runs), FOUR),
        is_real=True,
    ),
    Case(
        API,
        "test_launch_function",
        "a function on four processes returns 10 to 13",
        function_results,
        is_real=True,
    ),
    Case(
        API,
        "test_launch_dist_sum_with_static_rdzv",
        "static rendezvous: the sum over four ranks is right",
        lambda runs: summed(by_tcp(runs)),
        is_real=True,
    ),
    Case(
        API,
        "test_launch_elastic",
        "etcd: one host of 1:2 runs",
        lambda runs: refused(["--nnodes=1:2", "--rdzv-backend=etcd", "x.py"], "needs no rendezvous service"),
        "refused",
        ETCD,
    ),
    Case(
        API,
        "test_launch_elastic_worker_raise_exception",
        "1:2 hosts, a worker raises: the launcher fails",
        lambda runs: fails(sad(runs)),
        is_real=True,
    ),
    Case(
        API,
        "test_launch_elastic_multiple_agents",
        "two launchers of one job both end with 0",
        lambda runs: holds([done.code for done in two_hosts(runs)] == [0, 0]),
        is_real=True,
    ),
    Case(
        API,
        "test_get_entrypoint_name",
        "the job is named after the script",
        lambda runs: holds(entry("test_script.py") == entry("-m", "a.test_script") == "test_script"),
        "differs",
        "docs/torchrun.md: flowdist's messages use a similar name",
    ),
    Case(
        API,
        "test_rdzv_handler_shutdown_on_agent_signal",
        "SIGTERM and SIGINT end the launcher and its workers",
        ended,
        is_real=True,
    ),
    Case(
        SIGNALS,
        "test_launch_agent_sets_signals_env_var",
        "SIGTERM,SIGUSR1,SIGUSR2 are handled",
        lambda runs: refused(["--signals-to-handle=SIGTERM,SIGUSR1,SIGUSR2", "x.py"], "forwards no SIGUSR1"),
        "refused",
        "docs/torchrun.md: others, such as SIGUSR1, are refused",
    ),
    Case(
        SIGNALS,
        "test_launch_agent_default_signals",
        "by default SIGTERM, SIGINT, SIGHUP and SIGQUIT are handled",
        lambda runs: outcome_of("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT", "x.py"),
    ),
    Case(
        SIGNALS,
        "test_launch_agent_failing_rdzv_shutdown_does_not_mask_child_failed_error",
        "the failure of a worker is the error of the launcher",
        outer_file,
        is_real=True,
    ),
]
