"""The environment of a worker, name by name; devices, ports and readiness."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from flowdist import worker
from flowdist.control.protocol.effects import StartReplica
from flowdist.errors import FlowdistError
from flowdist.graph import Cluster, NodeSpec, Readiness, Resources, RoleGraph, RoleSpec, SecretRef
from flowdist.runtime.agent.readiness import FileState, file_state, until_ready
from flowdist.runtime.gpus.devices import machine_gpus, settle_cluster, share_devices
from flowdist.runtime.processes.spawn_protocol import PrefixSpec
from flowdist.runtime.worker_env.environment import (
    RunPaths,
    expand,
    expand_command,
    macro_values,
    prefix_spec,
    worker_env,
)
from flowdist.runtime.worker_env.ports import Ports
from tests.control.harness import r, restart, role

START = StartReplica(
    "node1",
    r("trainer/1"),
    3,
    "trainer",
    5,
    2,
    6,
    1,
    3,
    2,
    6,
    4,
    "127.0.0.1",
    29500,
    addresses=(("ps:rpc", "h:1,h:2"),),
)
PLACES = RunPaths("/runs/x", "x", "/runs/x/checkpoints", "/runs/x/node1.sock")


def env(
    spec: RoleSpec, base: dict[str, str] | None = None, local_rank: int = 1, gpus: tuple[str, ...] = ()
) -> dict[str, str]:
    return worker_env(START, spec, local_rank, base or {}, PLACES, {"rpc-a": 15001}, gpus, has_store=True)


def test_every_variable_of_torchrun_with_its_meaning_and_flowdists_own() -> None:
    spec = role("trainer", procs=2, restart=restart("role", 7))
    assert env(spec, {"HOME": "/root"}) == {
        "HOME": "/root",
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/runs/x/trainer/1/attempt_3/1/error.json",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",
        "FLOWDIST_ROLE": "trainer",
        "FLOWDIST_REPLICA": "trainer/1",
        "FLOWDIST_GENERATION": "5",
        "FLOWDIST_ATTEMPT": "3",
        "FLOWDIST_RUN_ID": "x",
        "FLOWDIST_SOURCE_RANK": "4",
        "FLOWDIST_CHECKPOINT_DIR": "/runs/x/checkpoints",
        "FLOWDIST_LATEST": "/runs/x/checkpoints/trainer/latest.json",
        "FLOWDIST_SOCKET": "/runs/x/node1.sock",
        "FLOWDIST_PEERS": "/runs/x/trainer/1/attempt_3/peers.json",
        "FLOWDIST_NOTICE": "/runs/x/trainer/1/attempt_3/notice.json",
        "FLOWDIST_ASKED": "/runs/x/trainer/1/attempt_3/1/asked",
        "FLOWDIST_PORT_RPC_A": "15001",
    }


def test_steps_are_counted_unless_the_role_or_the_user_says_no() -> None:
    assert "FLOWDIST_COUNT_STEPS" not in env(role("trainer", procs=2))
    assert env(role("trainer", procs=2, count_steps=False))["FLOWDIST_COUNT_STEPS"] == "0"
    assert env(role("trainer", procs=2), {"FLOWDIST_COUNT_STEPS": "0"})["FLOWDIST_COUNT_STEPS"] == "0"


def test_an_evaluator_finds_what_another_role_has_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = PLACES._replace(checkpoint_dir=str(tmp_path))
    gang, ps = role("trainer"), role("ps", kind="service", gang=False)
    monkeypatch.setenv("FLOWDIST_SOCKET", "/runs/x/node1.sock")
    monkeypatch.setenv("FLOWDIST_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("FLOWDIST_LATEST", str(tmp_path / "evaluator/0/latest.json"))
    assert worker.latest("trainer") is None
    for spec, replica in ((gang, r("trainer/1")), (ps, r("ps/1"))):
        pointer = places.latest(msgspec.structs.replace(START, replica=replica), spec)
        pointer.parent.mkdir(parents=True)
        pointer.write_text(json.dumps({"path": f"of {replica}"}))
    assert (str(worker.latest("trainer")), str(worker.latest("ps/1"))) == ("of trainer/1", "of ps/1")
    assert worker.latest("ps/0") is None and worker.latest() is None
    (tmp_path / "peers.json").write_text('{"ps:rpc": ["h:1"], "roles": ["trainer", "ps", "evaluator"]}')
    monkeypatch.setenv("FLOWDIST_PEERS", str(tmp_path / "peers.json"))
    assert worker.latest("ps/0") is None and worker.latest("evaluator") is None
    for name in ("train", "train/0"):
        with pytest.raises(RuntimeError, match=rf"latest\('{name}'\): .* the job has trainer, ps, evaluator"):
            worker.latest(name)
    with pytest.raises(RuntimeError, match=r"\(known: ps:rpc\)"):
        worker.peers("train", "rpc")


def test_inherited_variables_are_kept_and_those_of_the_role_replace_them() -> None:
    spec = role("trainer", procs=2, env=(("OMP_NUM_THREADS", "3"), ("WHO", "${replica} of ${world_size}")))
    found = env(spec, {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "", "GLOO_SOCKET_IFNAME": "eth0", "RANK": "9"})
    assert (found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"], found["GLOO_SOCKET_IFNAME"]) == ("3", "", "eth0")
    assert found["WHO"] == "trainer/1 of 6" and found["RANK"] == "3"
    assert "OMP_NUM_THREADS" not in env(role("trainer"))


def test_only_roles_with_gpus_have_cuda_visible_devices() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in env(role("trainer"), gpus=("5", "6"))
    spec = RoleSpec("trainer", ("true",), procs=2, resources=Resources(gpu=2))
    given = env(spec, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}, gpus=("5", "6"))
    assert given["CUDA_VISIBLE_DEVICES"] == "5,6" and not {"CUDA_DEVICE_ORDER", "FLOWDIST_GPU_FRACTION"} & set(given)


def test_numbers_that_are_not_the_users_are_by_place() -> None:
    spec = RoleSpec("trainer", ("true",), resources=Resources(gpu=1))
    assert env(spec, gpus=("5",))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env(spec, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, gpus=("5",))["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@pytest.mark.parametrize(
    ("base", "gpus", "sees"),
    [
        ({}, ("5", "6"), ["5", "6"]),
        ({"CUDA_VISIBLE_DEVICES": "4, GPU-7"}, (), ["4", "GPU-7"]),
        ({"CUDA_VISIBLE_DEVICES": "4"}, (), ["4", "4"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), ["", ""]),
        ({}, (), ["0", "1"]),
    ],
)
def test_a_virtual_local_rank_is_0_on_a_device_of_its_own(
    base: dict[str, str], gpus: tuple[str, ...], sees: list[str]
) -> None:
    spec = RoleSpec("a", ("true",), procs=2, resources=Resources(gpu=len(gpus)), virtual_local_rank=True)
    found = [env(spec, base, rank, gpus) for rank in (0, 1)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == sees
    assert [(each["LOCAL_RANK"], each["RANK"]) for each in found] == [("0", "2"), ("0", "3")]


def test_a_worker_with_a_share_of_a_gpu_has_its_size_in_a_variable() -> None:
    spec = RoleSpec("actor", ("true",), resources=Resources(gpu=1, gpu_share=250))
    found = env(spec, gpus=("5",))
    assert (found["CUDA_VISIBLE_DEVICES"], found["FLOWDIST_GPU_FRACTION"]) == ("5", "0.25")


def test_macros_and_the_interpreter() -> None:
    spec = RoleSpec("trainer", ("python", "x.py", "${addresses:ps:rpc}", "${self.port:rpc-a}", "a${rank}"), procs=2)
    values = macro_values(START, spec, 1, PLACES, {"rpc-a": 15001})
    argv = expand_command(spec.command, values, {"PYTHON_EXEC": "/opt/python"})
    assert argv == ("/opt/python", "x.py", "h:1,h:2", "15001", "a3")
    assert expand_command(("./python", "x"), {}, {}) == ("./python", "x")
    assert expand("${log_dir} ${run_id} ${generation}", values) == "/runs/x/trainer/1/attempt_3/1 x 5"


def test_gpus_come_from_the_users_list_or_the_drivers(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert machine_gpus({}, tmp_path) == ("0", "1")
    assert machine_gpus({"CUDA_VISIBLE_DEVICES": "4, 7"}, tmp_path) == ("4", "7")
    assert machine_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert machine_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert machine_gpus({}, tmp_path / "no-driver") == ()


def test_no_gpu_is_given_to_two_nodes_and_more_than_there_are_is_refused() -> None:
    nodes = (NodeSpec("a", gpu=2), NodeSpec("b", gpu=1))
    assert share_devices(nodes, ("3", "5", "7", "9")) == [("3", "5"), ("7",)]
    graph = RoleGraph("x", (RoleSpec("r", ("true",)),), cluster=Cluster(nodes))
    assert settle_cluster(graph, ("0", "1", "2")) == (graph, [])
    with pytest.raises(FlowdistError, match="the nodes have 3 gpu, this machine has 2"):
        settle_cluster(graph, ("0", "1"))


def test_more_nodes_than_the_machine_has_memory_for_are_refused_before_anything_starts() -> None:
    nodes = tuple(NodeSpec(f"node{i}") for i in range(20_000))
    graph = RoleGraph("x", (RoleSpec("a", ("true",)),), cluster=Cluster(nodes, 20_000))
    with pytest.raises(FlowdistError, match="20,000 nodes on one machine need about 488GiB") as caught:
        settle_cluster(graph, ())
    assert "flowdist simulate" in caught.value.help and "--listen" in caught.value.help


def test_this_machine_promises_cpu_more_than_once_and_says_so() -> None:
    graph = RoleGraph("x", (RoleSpec("r", ("true",), max_replicas=500),), cluster=Cluster(given=False))
    settled, warnings = settle_cluster(graph, ())
    assert settled.cluster.nodes[0].cpu == 500 and "the replicas ask for 500 cpu" in warnings[0]


def test_the_cpu_of_this_machine_is_the_exact_sum_in_every_version_of_python() -> None:
    """From Python 3.12 on, sum() of floats is more precise: it was 3000.6000000000004 before."""
    roles = tuple(RoleSpec(f"r{cpu}", ("true",), resources=Resources(cpu=cpu)) for cpu in (1000.1, 1000.2, 1000.3))
    settled, _ = settle_cluster(RoleGraph("x", roles, cluster=Cluster(given=False)), ())
    assert settled.cluster.nodes[0].cpu == 3000.6


def test_ports_are_kept_and_those_of_two_nodes_never_meet() -> None:
    first, second = Ports("run", 0), Ports("run", 1)
    kept = first.of("ps/0", ("a", "b"))
    assert first.of("ps/0", ("a", "b")) == kept and len({*kept.values()}) == 2
    assert not set(kept.values()) & set(second.of("ps/1", ("a", "b")).values())


def test_a_port_in_use_is_passed_over() -> None:
    (port,) = Ports("seed", 0).of("ps/0", ("a",)).values()
    with socket.create_server(("127.0.0.1", port)):
        assert Ports("seed", 0).of("ps/0", ("a",)) != {"a": port}


def test_readiness_checks_wait_until_the_answer_is_yes(tmp_path: Path) -> None:
    async def passes(check: Readiness, ports: dict[str, int], before: FileState | None = None) -> bool:
        try:
            await asyncio.wait_for(until_ready(check, "127.0.0.1", ports, str(tmp_path), tmp_path, before), 0.2)
        except TimeoutError:
            return False
        return True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1:2]
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" if path == [b"/health"] else b"HTTP/1.0 503 No\r\n\r\n")
        writer.close()

    async def check() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ports = {"rpc": server.sockets[0].getsockname()[1], "shut": 1}
        assert await passes(Readiness("tcp", "rpc"), ports) and not await passes(Readiness("tcp", "shut"), ports)
        assert await passes(Readiness("http", "rpc/health"), ports)
        assert not await passes(Readiness("http", "rpc/other"), ports)
        assert not await passes(Readiness("file", "ok"), {})
        (tmp_path / "ok").touch()
        assert await passes(Readiness("file", "ok"), {})
        before = file_state(tmp_path / "ok")
        assert not await passes(Readiness("file", "ok"), {}, before)
        os.utime(tmp_path / "ok", ns=(0, 0))  # written after the wall clock was set back
        assert await passes(Readiness("file", "ok"), {}, before)
        (tmp_path / "0").mkdir()
        (tmp_path / "0/stdout.log").write_text("loading\nlistening on 80\n")
        assert await passes(Readiness("log", r"listening on \d+"), {})
        assert not await passes(Readiness("log", "ready"), {})
        server.close()

    asyncio.run(check())


BASE = {"HOME": "/root", "RANK": "the user's"}


def prefix_of(folder: Path, *args: str, base: dict[str, str] | None = None, **fields: object) -> PrefixSpec | None:
    """Return the fork server spec of a worker of a role that runs `python ARGS` in the folder."""
    spec = msgspec.structs.replace(role("trainer"), preload=("torch",), workdir=str(folder), **fields)
    spec = msgspec.structs.replace(spec, command=("python", *args))
    values = macro_values(START, spec, 1, PLACES, {})
    whole = worker_env(START, spec, 1, base or BASE, PLACES, {}, (), has_store=True)
    return prefix_spec(spec, expand_command(spec.command, values, base or BASE), base or BASE, whole)


def test_a_prefix_has_what_does_not_differ_from_worker_to_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "secret").write_text("hush")
    secrets = (SecretRef("KEY", file=str(tmp_path / "secret")),)
    env = (("OWN", "${role}"), ("MINE", "${rank}"))
    prefix = prefix_of(tmp_path, "-u", "train.py", "--rank", "${rank}", secrets=secrets, env=env)
    assert prefix is not None and prefix.argv == (sys.executable, "-u", "train.py", "--rank", "${rank}")
    assert prefix.has_own_words and prefix.cwd == str(tmp_path) and prefix.late == ("torch",)
    shared = dict(prefix.env)
    assert shared["OWN"] == "trainer" and shared["KEY"] == "hush" and shared["FLOWDIST_ROLE"] == "trainer"
    assert {"RANK", "MASTER_PORT", "MINE", "FLOWDIST_GENERATION"} <= {*prefix.unknown} - shared.keys()
    assert {"MASTER_PORT", "MINE", "FLOWDIST_GENERATION"} <= {*prefix.of_start} and "RANK" not in prefix.of_start
    assert prefix != prefix_of(tmp_path, "-u", "train.py", "other", secrets=secrets, env=env)


def test_what_starts_cold_has_no_prefix(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert prefix_of(tmp_path, "train.py", warm=False) is None
    assert prefix_of(tmp_path, "train.py", base={"PYTHON_EXEC": "/opt/python"}) is None
    assert prefix_of(tmp_path, "no-such-file.py") is None
