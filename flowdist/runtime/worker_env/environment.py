"""The environment variables and the command of a worker, with macros (`${rank}`) replaced.

Torchrun's mean what https://pytorch.org/docs/stable/elastic/run.html says, else what torch 2.13 does: see
docs/reference/environment.md. flowdist adds `FLOWDIST_...`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId, SnapshotRef
from flowdist.graph import WHOLE, RoleSpec, SecretRef
from flowdist.graph.sizes import mesh_of
from flowdist.graph.warmth import PythonCommand, cold_because, python_command, varies
from flowdist.runtime.processes.spawn_protocol import PrefixSpec
from flowdist.runtime.worker_env.stop_notice import ASKED, NOTICE
from flowdist.worker.snapshots.vault_link import EVERY, SNAPSHOT, VAULT, WORLD
from flowdist.worker.step_counter import SWITCH

_MACRO = re.compile(r"\$\{([^}]*)\}")
VARIABLE_BYTES_MAX = 100 << 10  # for a secret; Linux refuses variables of 128 KiB


PER_WORKER = (  # torchrun's and flowdist's variables that differ from worker to worker, or from start to start
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
    "TORCHELASTIC_ERROR_FILE",
    *("FLOWDIST_REPLICA", "FLOWDIST_GENERATION", "FLOWDIST_ATTEMPT", "FLOWDIST_SOURCE_RANK", "FLOWDIST_LATEST"),
    *("FLOWDIST_PEERS", "FLOWDIST_NOTICE", "FLOWDIST_ASKED", "FLOWDIST_MESH", "FLOWDIST_VISIBLE_DEVICES"),
    *("FLOWDIST_WORLD", "FLOWDIST_SNAPSHOT"),
)
OF_RANK = (  # those that a worker has again when it restarts, if the world has its size still
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_USE_AGENT_STORE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "FLOWDIST_REPLICA"),
)


class SecretMissing(OSError):
    """Error: the variable or file of a secret has no usable value, so that the workers of its role cannot start."""


class RunPaths(NamedTuple):
    """The id and the paths of one run, as the workers of one node use them."""

    run_dir: str
    run_id: str
    checkpoint_dir: str
    worker_socket: str  # at which the node's agent accepts connections of its workers
    vault: str = ""  # the socket of the node's vault, if there is one (R24)

    def attempt_dir(self, replica: ReplicaId, attempt: int) -> Path:
        """Return the path of the folder of an attempt, in which each worker has a folder named by its local rank."""
        return Path(self.run_dir, replica.role, str(replica.index), f"attempt_{attempt}")

    def snapshot(self, replica: ReplicaId, attempt: int) -> Path:
        """Return the file that names the snapshot from which an attempt goes on, if there is one: `snapshot_content`.

        It is too long for a variable: a world of thousands of ranks has as many lists of holders.
        """
        return self.attempt_dir(replica, attempt) / "snapshot.json"

    def latest(self, start: StartReplica, role: RoleSpec) -> Path:
        """Return the file that names the latest checkpoint: of the role for a gang, else of the replica."""
        folder = Path(self.checkpoint_dir, role.name)
        return folder / "latest.json" if role.gang else folder / str(start.replica.index) / "latest.json"


def worker_env(
    start: StartReplica,
    role: RoleSpec,
    local_rank: int,
    base: Mapping[str, str],
    paths: RunPaths,
    ports: Mapping[str, int],
    devices: tuple[str, ...],
    has_store: bool,
) -> dict[str, str]:
    """Return the whole environment of one worker that is to be started or resumed.

    Inherited variables (`base`) come first, then those of torchrun and flowdist and the GPUs, then the role's `env=`
    with its macros replaced, then its secrets; the later of one name is taken. `devices` are named as in
    CUDA_VISIBLE_DEVICES. Without `has_store` the worker of rank 0 serves the store. SecretMissing if a secret's source
    has no value.
    """
    env = {**base, **_defaults(base, role)}
    env.update(_torchrun_variables(start, role, local_rank, paths, has_store))
    env.update(_flowdist_variables(start, role, local_rank, paths, ports))
    if role.resources.gpu:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if role.resources.gpu_share < WHOLE:
            env["FLOWDIST_GPU_FRACTION"] = f"{role.resources.gpu_share / WHOLE:g}"
        if "CUDA_VISIBLE_DEVICES" not in base:  # flowdist has chosen the numbers, and counts GPUs by their PCI bus
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if role.virtual_local_rank:
        env |= _virtual_local_rank(env, local_rank)
    values = macro_values(start, role, local_rank, paths, ports)
    env.update({name: expand(value, values) for name, value in role.env})
    env.update({secret.name: read_secret(secret, base) for secret in role.secrets})
    return env


def _torchrun_variables(
    start: StartReplica, role: RoleSpec, local_rank: int, paths: RunPaths, has_store: bool
) -> dict[str, str]:
    return {
        "RANK": str(start.rank + local_rank),
        "WORLD_SIZE": str(start.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(role.procs),
        "GROUP_RANK": str(start.group_rank),
        "GROUP_WORLD_SIZE": str(start.group_world_size),
        "ROLE_NAME": role.name,
        "ROLE_RANK": str(start.role_rank + local_rank),
        "ROLE_WORLD_SIZE": str(start.role_world_size),
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(start.generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(role.restart.max_restarts if role.restart else 0),
        "TORCHELASTIC_RUN_ID": paths.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(has_store),
        "TORCHELASTIC_ERROR_FILE": str(
            paths.attempt_dir(start.replica, start.attempt) / str(local_rank) / "error.json"
        ),
    }


def _flowdist_variables(
    start: StartReplica, role: RoleSpec, local_rank: int, paths: RunPaths, ports: Mapping[str, int]
) -> dict[str, str]:
    """Return the variables that `flowdist.worker` reads, and those that name the replica's ports."""
    folder = paths.attempt_dir(start.replica, start.attempt)
    env = {
        "FLOWDIST_ROLE": role.name,
        "FLOWDIST_REPLICA": str(start.replica),
        "FLOWDIST_GENERATION": str(start.generation),
        "FLOWDIST_ATTEMPT": str(start.attempt),
        "FLOWDIST_RUN_ID": paths.run_id,
        "FLOWDIST_SOURCE_RANK": str(start.source_rank),
        "FLOWDIST_CHECKPOINT_DIR": paths.checkpoint_dir,
        "FLOWDIST_LATEST": str(paths.latest(start, role)),
        "FLOWDIST_SOCKET": paths.worker_socket,
        "FLOWDIST_PEERS": str(folder / "peers.json"),
        "FLOWDIST_NOTICE": str(folder / NOTICE),
        "FLOWDIST_ASKED": str(folder / str(local_rank) / ASKED),
    }
    if not role.count_steps:
        env[SWITCH] = "0"
    if role.snapshots is not None:
        env |= {VAULT: paths.vault, WORLD: start.world, EVERY: str(role.snapshots.every)}
        has_one = start.snapshot is not None
        env[SNAPSHOT] = str(paths.snapshot(start.replica, start.attempt)) if has_one else ""
    if role.parallel:
        dimensions = mesh_of(role.parallel, start.world_size)
        env["FLOWDIST_MESH"] = ",".join(f"{name}={size}" for name, size in dimensions)
    return env | {f"FLOWDIST_PORT_{name.upper().replace('-', '_')}": str(port) for name, port in ports.items()}


def snapshot_content(snapshot: SnapshotRef) -> dict[str, Any]:
    """Return the snapshot from which a generation goes on, with the vaults that hold the shard of each rank."""
    vaults = dict(snapshot.vaults)
    holders = {rank: [(node, vaults[node]) for node in nodes] for rank, nodes in enumerate(snapshot.holders())}
    of = {"generation": snapshot.generation, "step": snapshot.step, "world_size": snapshot.world_size}
    return {**of, "holders": holders}


def _virtual_local_rank(env: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables by which a worker sees its own GPU alone, as device 0: see torchrun --virtual-local-rank.

    FLOWDIST_VISIBLE_DEVICES gets all GPUs among which the worker's own was chosen. Those in CUDA_VISIBLE_DEVICES go to
    the workers in turn. If it is unset, the worker gets the GPU of number `local_rank`; if it is empty, none.
    """
    visible = [word.strip() for word in env.get("CUDA_VISIBLE_DEVICES", str(local_rank)).split(",") if word.strip()]
    device = visible[local_rank % len(visible)] if visible else ""
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device, "FLOWDIST_VISIBLE_DEVICES": ",".join(visible)}


def read_secret(secret: SecretRef, base: Mapping[str, str]) -> str:
    """Return the value of a secret from its variable, or from its file without the newlines at the end.

    SecretMissing, with the source, if that is unset, empty or unreadable, has a NUL, or is larger than
    VARIABLE_BYTES_MAX.
    """
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
    """Return flowdist's default variables for the workers of a role, without those that they inherit from `base`."""
    wanted = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if role.hang_after_ns is not None or role.start_timeout_ns is not None:
        wanted["PYTHONFAULTHANDLER"] = "1"  # a worker that hangs writes its stacks to its log (R15)
    if role.procs > 1:
        wanted["OMP_NUM_THREADS"] = "1"
    return {name: value for name, value in wanted.items() if name not in base}


def macro_values(
    start: StartReplica, role: RoleSpec, local_rank: int, paths: RunPaths, ports: Mapping[str, int]
) -> dict[str, str]:
    """Return the values of all macros for one worker, by name (`rank`); addresses as far as the order has them."""
    values = {
        "role": role.name,
        "replica": str(start.replica),
        "replica_index": str(start.replica.index),
        "rank": str(start.rank + local_rank),
        "local_rank": str(local_rank),
        "world_size": str(start.world_size),
        "attempt": str(start.attempt),
        "generation": str(start.generation),
        "checkpoint_dir": paths.checkpoint_dir,
        "log_dir": str(paths.attempt_dir(start.replica, start.attempt) / str(local_rank)),
        "run_id": paths.run_id,
        "$": "$",
    }
    values |= {f"self.port:{name}": str(port) for name, port in ports.items()}
    values |= {f"addresses:{key}": address for key, address in start.addresses}
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each `${NAME}` replaced; an address that is not known yet, the only gap, by nothing."""
    return _MACRO.sub(lambda match: values.get(match[1], ""), text)


def expand_command(command: Sequence[str], values: Mapping[str, str], base: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command with its macros replaced.

    A first word `python` or `python3` becomes PYTHON_EXEC of `base`, else the interpreter that runs flowdist.
    """
    argv = [expand(word, values) for word in command]
    if argv[0] in ("python", "python3"):
        argv[0] = base.get("PYTHON_EXEC", sys.executable)
    return tuple(argv)


def prefix_spec(
    role: RoleSpec, argv: tuple[str, ...], base: Mapping[str, str], env: Mapping[str, str]
) -> PrefixSpec | None:
    """Return the spec of the prefix that a worker may be forked from; None if it has to be started by exec."""
    if cold_because(role, base.get("PYTHON_EXEC", sys.executable), sys.executable):
        return None
    command = python_command(argv)
    if not isinstance(command, PythonCommand):
        return None
    if not (command.is_module or (Path(role.workdir) / command.target).is_file()):
        return None  # exec will report what is wrong with it
    unknown = [name for name in env if _is_own(name, role)]
    shared = tuple((name, value) for name, value in env.items() if name not in unknown)
    declared = zip(argv, role.command, strict=True)
    words = tuple(word if not varies(text) else text for word, text in declared)
    of_start = tuple(name for name in unknown if name not in OF_RANK)
    return PrefixSpec(words, shared, role.workdir, tuple(unknown), of_start, role.preload, words != argv)


def _is_own(name: str, role: RoleSpec) -> bool:
    """Return whether a worker of the role has a variable with another value than others, or than at its last start."""
    if name in PER_WORKER or name.startswith("FLOWDIST_PORT_"):
        return True
    if name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") and (role.resources.gpu or role.virtual_local_rank):
        return True
    return any(name == own and varies(value) for own, value in role.env)
