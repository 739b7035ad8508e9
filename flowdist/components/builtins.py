"""Built-in components of TorchX as plain functions that return a `Topology`, written as a user would write them.

    flowdist run dist.ddp -j 2:4x8 --script main.py -- --epochs 5

A topology file can call them, too: `t = ddp("--epochs", "5", script="main.py", j="2:4x8")`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flowdist.dsl.oneline import name_from, written_at
from flowdist.dsl.problems.places import CallSite, call_site
from flowdist.dsl.problems.problem import Problem, Problems, TopologyProblems, did_you_mean
from flowdist.dsl.read.resources import shared_sizes
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Node, Restart
from flowdist.torchrun.conf import DEAD_TIMERS, TIMERS, as_duration, entries_of, pair_of

DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
PROCS_MAX = 100_000
BARE = r"\d{1,6}"  # -j without an x
BACKENDS = ("c10d", "static")  # of torchrun's rendezvous: those that need no service of their own
# TorchX's macros, and what they become. `.` is the working folder of the workers: there is no image.
MACROS = {"app_id": "${run_id}", "replica_id": "${replica_index}", "rank0_env": "MASTER_ADDR", "img_root": "."}
REFUSED_MACROS = {
    "base_img_root": "TorchX has given it up, and there is no image here",
    "macros": "write the macro itself, such as ${app_id}",
}
JOB_ID = "flowdist://torchx/${run_id}"  # what TorchX's trackers call the handle of the app


class Size(NamedTuple):
    """Fewest and most nodes, and processes on each node (`procs`): `[MIN:]NNODESxNPROC`."""

    low: int
    high: int
    procs: int


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    name: str = "/",
    h: str | None = None,
    cpu: float = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803  # as TorchX has it
    j: str = "1x2",
    env: Mapping[str, str] | None = None,
    max_retries: int = 0,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: Sequence[str] = (),
    image: str | None = None,
    metadata: Mapping[str, str] | None = None,
    debug: bool = False,
) -> Topology:
    """Distributed data parallel training: one role, one process group, on NNODES logical nodes.

    Args:
        script_args: Arguments of the script or module.
        script, m: Path of the script, or name of the module; exactly one of them.
        name: `{experiment}/{run}`; an empty run is named after the script or module.
        h: Name of a size in flowdist.toml, instead of cpu, gpu and memMB.
        cpu, gpu, memMB: Cores, GPUs and megabytes (of 10**6 bytes) of one node.
        j: `[MIN:]NNODESxNPROC`, such as `2x8` or `2:4x8`; `2` alone is one node with two processes.
        env: Variables added to the environment of the workers.
        max_retries: Number of failures that restart the job; the next one fails it.
        rdzv_backend: `c10d` or `static`, which are the same here: node N is always replica N.
        rdzv_conf: `join_timeout=600,last_call_timeout=30`: how long the job waits below its minimum of nodes, and for
            more nodes below its maximum, in seconds. torchrun's other timers change nothing.
        mounts, image, metadata: Refused: processes on this machine see its files, and no scheduler starts them.
        debug: True: set the variables that make torch and NCCL log more.

    Returns:
        A topology that can be compiled. Its problems are reported at the call of this function.

    Raises:
        TopologyProblems: An argument cannot be read or cannot be honoured.
    """
    _check(script, m, mounts, image, metadata, max_retries, rdzv_backend)
    size = parse_j(j)
    program = script or (m or "").rpartition(".")[2]
    experiment, run = names_of(name, program)
    variables = _variables(env or {}, experiment, run, debug=debug)
    timers = _timers(rdzv_conf or "")
    node: dict[str, Any] = {"cpu": cpu, "gpu": gpu, "memory": f"{memMB}MB"} if h is None else {"resources": h}
    t = Topology(name_from(run), nodes=[Node(**node) for _ in range(size.high)])
    t.role(
        name_from(program),
        script=script,
        module=m,
        args=[translated(word) for word in script_args],
        replicas=f"{size.low}:{size.high}x{size.procs}",
        apart=size.high > 1,
        env=variables,
        restart=Restart("role", max_restarts=max_retries) if max_retries else None,
        **node,
        **timers,
    )
    return written_at(t, _caller())


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    name: str = "/",
    h: str | None = None,
    gpu: int = 0,
    j: str = "1x1",
    env: Mapping[str, str] | None = None,
    max_retries: int = 0,
    mounts: Sequence[str] = (),
    image: str | None = None,
    metadata: Mapping[str, str] | None = None,
    debug: bool = False,
) -> Topology:
    """One program on N nodes with M processes each: `ddp` with the size of a node given by `h` or `gpu` alone.

    Args:
        args: Arguments of the script or module.
        script, m, name, h, gpu, env, max_retries, mounts, image, metadata, debug: As for `ddp`.
        j: As for `ddp`, except that `2` alone is two nodes with a process for each GPU of a node.

    Returns:
        A topology that can be compiled, as that of `ddp`.

    Raises:
        TopologyProblems: An argument cannot be read or cannot be honoured.
    """
    options = locals()  # the parameters: there is no other local variable yet
    if re.fullmatch(BARE, nodes := str(j).strip()):
        options["j"] = f"{nodes}x{_gpus_of_node(h, gpu, nodes)}"
    return ddp(*options.pop("args"), **options)


def _gpus_of_node(h: str | None, gpu: int, nodes: str) -> int:
    """Return the number of GPUs of a node, for `-j NODES` without a number of processes; FD153 if it has none."""
    if h is not None:
        size = shared_sizes(Path(_caller().file).parent, Problems()).get(h)
        gpu = size.gpu if size is not None else 1  # the compiler reports the unknown name
    if gpu < 1:
        message = f"-j {nodes}: as many processes as a node has GPUs are meant, and it has none"
        _refuse("FD153", message, f"write -j {nodes}x8 for 8 processes on each node, or --gpu 8")
    return gpu


def _variables(env: Mapping[str, Any], experiment: str, run: str, *, debug: bool) -> dict[str, Any]:
    """Return the environment variables of the workers: LOGLEVEL, the user's `env`, and those that TorchX sets."""
    variables = {"LOGLEVEL": os.environ.get("LOGLEVEL", "WARNING")}
    for variable, value in env.items():
        variables[variable] = translated(value) if isinstance(value, str) else value
    variables |= {"TORCHX_TRACKING_EXPERIMENT_NAME": experiment, "TORCHX_TRACKING_RUN_NAME": run}
    return variables | {"TORCHX_JOB_ID": JOB_ID, **(DEBUG if debug else {})}


def _caller() -> CallSite:
    """Return the call in the user's file by which a function of this module was called."""
    depth = 1
    while sys._getframe(depth).f_code.co_filename == __file__:
        depth += 1
    return call_site((), depth + 1)


def translated(word: str) -> str:
    """Translate TorchX's macros in a text to flowdist's, whose own stay; `$$` becomes a dollar, as in TorchX.

    Raises TopologyProblems for a macro of TorchX that has no meaning here (FD154).
    """
    for name, help in REFUSED_MACROS.items():
        if found := re.search(rf"\$\{{{name}\b[^}}]*\}}", word):
            _refuse("FD154", f"{found[0]} in {word!r} cannot be translated", help)
    names = "|".join(MACROS)
    pattern = rf"\$(?:(\$)|\{{({names})\}}|({names})\b)"
    return re.sub(pattern, lambda match: "${$}" if match[1] else MACROS[match[2] or match[3]], word)


def _timers(rdzv_conf: str) -> dict[str, Any]:
    """Return the arguments of a role that the timers of --rdzv-conf stand for, as durations; others are refused."""
    timers: dict[str, Any] = {}
    for name, value in map(pair_of, entries_of(rdzv_conf)):
        message = f"--rdzv_conf {name}={value}"
        if name in TIMERS:
            if (duration := as_duration(value)) is None:
                _refuse("FD154", f"{message}: {value!r} is not a number of seconds", f"write {name}=30")
            timers[TIMERS[name]] = duration
        elif name not in DEAD_TIMERS:
            _refuse("FD154", f"{message} cannot be honoured", did_you_mean(name, [*TIMERS, *DEAD_TIMERS]))
    return timers


def _check(
    script: str | None,
    m: str | None,
    mounts: Sequence[str],
    image: str | None,
    metadata: Mapping[str, str] | None,
    max_retries: int,
    rdzv_backend: str,
) -> None:
    """Raise TopologyProblems (FD154) for arguments of TorchX that contradict each other or cannot be honoured."""
    if (script is None) == (m is None):
        _refuse("FD154", "exactly one of --script and -m is needed", "write --script main.py, or -m my.module")
    if mounts:
        listed = mounts if isinstance(mounts, str) else ",".join(mounts)
        help = "leave it out: processes on this machine see its files"
        _refuse("FD154", f"--mounts {listed}: there is nothing to mount into", help)
    if image is not None:
        help = "leave it out, or run flowdist inside the container"
        _refuse("FD154", f"--image {image}: processes on this machine are in no container", help)
    if metadata:
        words = ",".join(f"{key}={value}" for key, value in metadata.items())
        _refuse("FD154", f"--metadata {words}: no scheduler gets it", "leave it out, or write it into --env")
    if rdzv_backend not in BACKENDS:
        help = f"leave it out, or write one of {', '.join(BACKENDS)}"
        _refuse("FD154", f"--rdzv_backend {rdzv_backend}: no service is needed here", help)
    if max_retries < 0:
        _refuse("FD154", f"--max_retries {max_retries} is below 0", "write --max_retries 0, or leave it out")


def parse_j(j: str) -> Size:
    """Return the size that `[[MIN:]NNODESx]NPROC` describes; without MIN, the minimum is NNODES, and that is 1.

    Raises TopologyProblems for text that is anything else, a number out of range, or a minimum above the maximum
    (FD153).
    """
    text = str(j).strip()
    match = re.fullmatch(r"(?:(?:(\d{1,6}):)?(\d{1,6})x)?(\d{1,6})", text)
    if match is None:
        _refuse("FD153", f"-j {text} cannot be read", "write [MIN:]NNODESxNPROC, as in -j 2x8 or -j 2:4x8")
    size = Size(int(match[1] or match[2] or 1), int(match[2] or 1), int(match[3]))
    if min(size) < 1 or max(size) > PROCS_MAX:
        _refuse("FD153", f"-j {text} has a number that is not from 1 to {PROCS_MAX:,}", "write -j 1x1 or more")
    if size.low > size.high:
        help = f"write -j {size.high}:{size.low}x{size.procs}"
        _refuse("FD153", f"-j {text}: minimum {size.low} is larger than maximum {size.high}", help)
    return size


def names_of(name: str, program: str) -> tuple[str, str]:
    """Return the names of the experiment and the run in `{experiment}/{run}`.

    Both parts can be empty, and text without a slash is a run. An empty experiment is `default-experiment`, and an
    empty run is named after the `program`, a script or module.
    """
    experiment, slash, run = name.partition("/")
    if not slash:
        experiment, run = "", name
    return experiment or "default-experiment", run or Path(program).stem


def _refuse(code: str, message: str, help: str) -> NoReturn:
    raise TopologyProblems([Problem(code, message, help, _caller().place())])
