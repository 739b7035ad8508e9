"""Built-in components of TorchX as plain functions that return a `Topology`, written as a user would write them.

    flowdist run dist.ddp -j 2:4x8 --script main.py -- --epochs 5

A topology file can call them, too: `t = ddp("--epochs", "5", script="main.py", j="2:4x8")`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from flowdist.dsl.oneline import name_from, written_at
from flowdist.dsl.problems.places import CallSite, call_site
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Node, Restart

DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
PROCS_MAX = 100_000


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
    mounts: Sequence[str] = (),
    image: str | None = None,
    debug: bool = False,
) -> Topology:
    """Distributed data parallel training: one role, one process group, on NNODES logical nodes.

    Args:
        script_args: Arguments of the script or module.
        script, m: Path of the script, or name of the module; exactly one of them.
        name: `{experiment}/{run}`; an empty run is named after the script or module.
        h: Name of a size in flowdist.toml, instead of cpu, gpu and memMB.
        cpu, gpu, memMB: Cores, GPUs and megabytes (of 10**6 bytes) of one node.
        j: `[MIN:]NNODESxNPROC`, such as `2x8` or `2:4x8`.
        env: Variables added to the environment of the workers.
        max_retries: Number of failures that restart the job; the next one fails it.
        mounts, image: Refused: processes on this machine see its files.
        debug: True: set the variables that make torch and NCCL log more.

    Returns:
        A topology that can be compiled. Its problems are reported at the call of this function.

    Raises:
        TopologyProblems: An argument cannot be read or cannot be honoured.
    """
    _check(script, m, mounts, image, max_retries)
    size = parse_j(j)
    program = script or (m or "").rpartition(".")[2]
    experiment, run = names_of(name, program)
    variables = {"LOGLEVEL": os.environ.get("LOGLEVEL", "WARNING"), **(env or {})}
    variables |= {"TORCHX_TRACKING_EXPERIMENT_NAME": experiment, **(DEBUG if debug else {})}
    memory = f"{memMB}MB"
    nodes = [Node(cpu=cpu, gpu=gpu, memory=memory) for _ in range(size.high)]

    t = Topology(name_from(run), nodes=nodes if h is None else size.high if size.high > 1 else None)
    t.role(
        name_from(program),
        script=script,
        module=m,
        args=list(script_args),
        replicas=f"{size.low}:{size.high}x{size.procs}",
        resources=h,
        cpu=cpu if h is None else None,
        gpu=gpu if h is None else None,
        memory=memory if h is None else None,
        apart=size.high > 1,
        env=variables,
        restart=Restart("role", max_restarts=max_retries) if max_retries else None,
    )
    return written_at(t, _caller())


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    name: str = "/",
    h: str | None = None,
    j: str = "1x1",
    env: Mapping[str, str] | None = None,
    max_retries: int = 0,
    mounts: Sequence[str] = (),
    image: str | None = None,
    debug: bool = False,
) -> Topology:
    """One program on N nodes with M processes each: `ddp` with the size of a node given by `h` alone.

    Args:
        args: Arguments of the script or module.
        script, m, name, h, j, env, max_retries, mounts, image, debug: As for `ddp`.

    Returns:
        A topology that can be compiled, as that of `ddp`.

    Raises:
        TopologyProblems: An argument cannot be read or cannot be honoured.
    """
    options = locals()  # the parameters: there is no other local variable yet
    return ddp(*options.pop("args"), **options)


def _caller() -> CallSite:
    """Return the call in the user's file by which a function of this module was called."""
    depth = 1
    while sys._getframe(depth).f_code.co_filename == __file__:
        depth += 1
    return call_site((), depth + 1)


def _check(script: str | None, m: str | None, mounts: Sequence[str], image: str | None, max_retries: int) -> None:
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
    if max_retries < 0:
        _refuse("FD154", f"--max_retries {max_retries} is below 0", "write --max_retries 0, or leave it out")


def parse_j(j: str) -> Size:
    """Return the size that `[MIN:]NNODESxNPROC` describes; without MIN, the minimum is NNODES.

    A bare number is refused, because TorchX reads it in two ways.

    Args:
        j: The text, such as `2x8` or `2:4x8`.

    Raises:
        TopologyProblems: The text cannot be read, has a number out of range, or has a minimum above the maximum
            (FD153).
    """
    text = str(j).strip()
    if re.fullmatch(r"\d{1,6}", text):
        message = f"-j {text} can be read in two ways"
        ways = f"1 node with {text} processes (-j 1x{text}), or {text} nodes with one process for each GPU"
        _refuse("FD153", message, f"{ways} (-j {text}x8 where each has 8)")
    match = re.fullmatch(r"(?:(\d{1,6}):)?(\d{1,6})x(\d{1,6})", text)
    if match is None:
        _refuse("FD153", f"-j {text} cannot be read", "write [MIN:]NNODESxNPROC, as in -j 2x8 or -j 2:4x8")
    size = Size(int(match[1] or match[2]), int(match[2]), int(match[3]))
    if min(size) < 1 or max(size) > PROCS_MAX:
        _refuse("FD153", f"-j {text} has a number that is not from 1 to {PROCS_MAX:,}", "write -j 1x1 or more")
    if size.low > size.high:
        help = f"write -j {size.high}:{size.low}x{size.procs}"
        _refuse("FD153", f"-j {text}: minimum {size.low} is larger than maximum {size.high}", help)
    return size


def names_of(name: str, program: str) -> tuple[str, str]:
    """Return the names of the experiment and the run in `{experiment}/{run}`.

    Both parts can be empty, and text without a slash is a run. An empty experiment is `default-experiment`, and an
    empty run is named after the program.

    Args:
        name: The text.
        program: Path of the script, or name of the module.
    """
    experiment, slash, run = name.partition("/")
    if not slash:
        experiment, run = "", name
    return experiment or "default-experiment", run or name_from(program)


def _refuse(code: str, message: str, help: str) -> NoReturn:
    """Raise TopologyProblems with one problem, at the user's call."""
    raise TopologyProblems([Problem(code, message, help, _caller().place())])
