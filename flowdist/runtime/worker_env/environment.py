"""What a worker sees: torchrun's variables with torchrun's meaning, flowdist's own, and the macros of its command.

The source of the meanings is torchrun's documentation (https://pytorch.org/docs/stable/elastic/run.html) and, where
that is silent, the behaviour of torch 2.13: see docs/run.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flowdist.control.protocol.effects import StartReplica
from flowdist.graph import WHOLE, RoleSpec, SecretRef
from flowdist.graph.mesh import mesh_of
from flowdist.graph.warmth import PythonCommand, cold_because, python_command, varies
from flowdist.runtime.processes.spawning import ForkServer
from flowdist.runtime.worker_env.notice import ASKED, NOTICE

_MACRO = re.compile(r"\$\{([^}]*)\}")


VARIABLE_BYTES_MAX = 100 << 10  # Linux refuses 128 KiB


class SecretMissing(OSError):
    """A worker cannot start, because one of its secrets has no value."""


class Places(NamedTuple):
    """Where things of the run are."""

    run_dir: str
    run_id: str
    checkpoint_dir: str
    worker_socket: str

    def attempt_dir(self, start: StartReplica) -> Path:
        role, index = start.replica
        return Path(self.run_dir, role, str(index), f"attempt_{start.attempt}")

    def latest(self, start: StartReplica, role: RoleSpec) -> Path:
        """The pointer to the accepted checkpoint: one for a gang, one for each replica without."""
        folder = Path(self.checkpoint_dir, role.name)
        return folder / "latest.json" if role.gang else folder / str(start.replica.index) / "latest.json"


def worker_env(
    start: StartReplica,
    role: RoleSpec,
    local_rank: int,
    base: Mapping[str, str],
    places: Places,
    ports: Mapping[str, int],
    devices: tuple[str, ...],
    has_store: bool,
) -> dict[str, str]:
    """The whole environment of one worker.

    Args:
        base: What the worker inherits; what the role and the attempt say wins over it.
        ports: The replica's own, by name.
        devices: The real GPUs of the replica, as CUDA_VISIBLE_DEVICES names them.
        has_store: Whether the generation's store is served by its node, so that rank 0 is a client too.

    Raises:
        SecretMissing: when the source of a secret has no value.
    """
    folder = places.attempt_dir(start)
    env = dict(base)
    env.update(_defaults(base, role))
    env.update(
        RANK=str(start.rank + local_rank),
        WORLD_SIZE=str(start.world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(role.procs),
        GROUP_RANK=str(start.group_rank),
        GROUP_WORLD_SIZE=str(start.group_world_size),
        ROLE_NAME=role.name,
        ROLE_RANK=str(start.role_rank + local_rank),
        ROLE_WORLD_SIZE=str(start.role_world_size),
        MASTER_ADDR=start.master_addr,
        MASTER_PORT=str(start.master_port),
        TORCHELASTIC_RESTART_COUNT=str(start.generation - 1),
        TORCHELASTIC_MAX_RESTARTS=str(role.restart.max_restarts if role.restart else 0),
        TORCHELASTIC_RUN_ID=places.run_id,
        TORCHELASTIC_USE_AGENT_STORE=str(has_store),
        TORCHELASTIC_ERROR_FILE=str(folder / str(local_rank) / "error.json"),
        FLOWDIST_ROLE=role.name,
        FLOWDIST_REPLICA=str(start.replica),
        FLOWDIST_GENERATION=str(start.generation),
        FLOWDIST_ATTEMPT=str(start.attempt),
        FLOWDIST_RUN_ID=places.run_id,
        FLOWDIST_SOURCE_RANK=str(start.source_rank),
        FLOWDIST_CHECKPOINT_DIR=places.checkpoint_dir,
        FLOWDIST_LATEST=str(places.latest(start, role)),
        FLOWDIST_SOCKET=places.worker_socket,
        FLOWDIST_PEERS=str(folder / "peers.json"),
        FLOWDIST_NOTICE=str(folder / NOTICE),
        FLOWDIST_ASKED=str(folder / str(local_rank) / ASKED),
    )
    if role.parallel:
        dimensions = mesh_of(role.parallel, start.world_size)
        env["FLOWDIST_MESH"] = ",".join(f"{name}={size}" for name, size in dimensions)
    env.update({f"FLOWDIST_PORT_{name.upper().replace('-', '_')}": str(port) for name, port in ports.items()})
    if role.resources.gpu:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if role.resources.gpu_share < WHOLE:
            env["FLOWDIST_GPU_FRACTION"] = f"{role.resources.gpu_share / WHOLE:g}"
        if "CUDA_VISIBLE_DEVICES" not in base:  # the numbers are ours, and we count by place
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if role.virtual_local_rank:
        env |= _one_device(env, local_rank)
    values = macro_values(start, role, local_rank, places, ports)
    env.update({name: expand(value, values) for name, value in role.env})
    env.update({secret.name: read_secret(secret, base) for secret in role.secrets})
    return env


def _one_device(env: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """As torchrun --virtual-local-rank: of the devices that all would see, the worker's own; it is number 0 for it."""
    visible = [word.strip() for word in env.get("CUDA_VISIBLE_DEVICES", str(local_rank)).split(",") if word.strip()]
    device = visible[local_rank % len(visible)] if visible else ""
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device, "FLOWDIST_VISIBLE_DEVICES": ",".join(visible)}


def read_secret(secret: SecretRef, base: Mapping[str, str]) -> str:
    """The value; SecretMissing, with the source in words, when there is none."""
    if secret.env:
        if value := base.get(secret.env):
            return value
        raise SecretMissing(f"the variable {secret.env} is not set")
    try:
        path = Path(secret.file).expanduser()
        data = path.read_bytes() if path.is_file() else None  # a pipe would give its value only once
    except RuntimeError:
        raise SecretMissing(f"the home of {secret.file} is unknown") from None
    except OSError as error:
        raise SecretMissing(f"{secret.file}: {error.strerror}") from None
    if data is None:
        raise SecretMissing(f"there is no file {secret.file}")
    value = os.fsdecode(data).rstrip("\r\n")
    if not value or "\0" in value or len(data) > VARIABLE_BYTES_MAX:
        raise SecretMissing(f"{secret.file} is {'empty' if not value else 'no text that fits a variable'}")
    return value


def _defaults(base: Mapping[str, str], role: RoleSpec) -> dict[str, str]:
    """What is set only where the user has set nothing."""
    wanted = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if role.hang_after_ns is not None or role.start_timeout_ns is not None:
        wanted["PYTHONFAULTHANDLER"] = "1"  # the stacks of a worker that hangs go to its log (R15)
    if role.procs > 1:
        wanted["OMP_NUM_THREADS"] = "1"
    return {name: value for name, value in wanted.items() if name not in base}


def macro_values(
    start: StartReplica, role: RoleSpec, local_rank: int, places: Places, ports: Mapping[str, int]
) -> dict[str, str]:
    """What each macro stands for in this worker."""
    values = {
        "role": role.name,
        "replica": str(start.replica),
        "replica_index": str(start.replica.index),
        "rank": str(start.rank + local_rank),
        "local_rank": str(local_rank),
        "world_size": str(start.world_size),
        "attempt": str(start.attempt),
        "generation": str(start.generation),
        "checkpoint_dir": places.checkpoint_dir,
        "log_dir": str(places.attempt_dir(start) / str(local_rank)),
        "run_id": places.run_id,
        "$": "$",
    }
    values |= {f"self.port:{name}": str(port) for name, port in ports.items()}
    values |= {f"addresses:{key}": address for key, address in start.addresses}
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Fill the macros in. The compiler has refused unknown ones; an address that nobody has yet is empty."""
    return _MACRO.sub(lambda match: values.get(match[1], ""), text)


def worker_argv(role: RoleSpec, values: Mapping[str, str], base: Mapping[str, str]) -> tuple[str, ...]:
    """The command of a worker."""
    return argv_of(role.command, values, base)


def argv_of(command: Sequence[str], values: Mapping[str, str], base: Mapping[str, str]) -> tuple[str, ...]:
    """Macros filled in. Only an argv[0] of exactly `python` or `python3` becomes the interpreter (or PYTHON_EXEC)."""
    argv = [expand(word, values) for word in command]
    if argv[0] in ("python", "python3"):
        argv[0] = base.get("PYTHON_EXEC", sys.executable)
    return tuple(argv)


def fork_server(
    role: RoleSpec, argv: tuple[str, ...], base: Mapping[str, str], env: Mapping[str, str], values: Mapping[str, str]
) -> ForkServer | None:
    """The fork server that a worker may be forked from; None when it has to be started by exec.

    It has what does not differ from worker to worker: imports that want RANK, say, are no matter for it.

    Args:
        base: What the worker inherits.
        env: Its whole environment.
        values: What each macro stands for in this worker.
    """
    if cold_because(role, base.get("PYTHON_EXEC", sys.executable), sys.executable):
        return None
    command = python_command(argv)
    folder = Path(role.workdir)
    if not isinstance(command, PythonCommand) or not (command.is_module or (folder / command.target).is_file()):
        return None  # exec says what is wrong with it
    shared = {**base, **_defaults(base, role), **{secret.name: env[secret.name] for secret in role.secrets}}
    shared |= {name: expand(value, values) for name, value in role.env if not varies(value)}
    first_path = str(folder if command.is_module else (folder / command.target).resolve().parent)
    if shared.get("PYTHONSAFEPATH"):
        first_path = ""
    return ForkServer((argv[0], *command.flags), tuple(shared.items()), role.workdir, first_path, role.preload)
