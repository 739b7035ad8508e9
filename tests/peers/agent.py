"""Cases of PyTorch's test/distributed/elastic/agent/server/test/local_elastic_agent_test.py.

The peer runs each of them with etcd, etcd-v2 and c10d; here they run without a rendezvous service.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import flowdist
from flowdist import Node, Restart, Topology
from flowdist.control.protocol.effects import StartReplica
from flowdist.errors import FlowdistError
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of
from flowdist.torchrun.rendezvous import as_here
from tests.peers.case import Case, holds
from tests.peers.launcher import by_tcp, fails, four, function_results, outer_file, ran, refused, summed, two_hosts
from tests.peers.runs import Done, Runs
from tests.torchrun.harness import outcome_of, what_becomes_of

PEER = "agent/local_elastic_agent_test.py"
NAMES = (
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_RANK", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


def env_of(done: Done) -> dict[str, str]:
    """Return the environment of rank 0."""
    env: dict[str, str] = done.told[0]["env"]
    return env


def names_are_set(runs: Runs) -> None:
    assert set(NAMES) <= set(env_of(four(runs)))


def nccl_default(runs: Runs) -> None:
    assert env_of(four(runs))["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"


def variables(runs: Runs) -> Done:
    """Return a run with variables that a user has set, among them the watchdog's of torch's agent."""
    env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCHELASTIC_HEALTH_CHECK_PORT": "12345"}
    env |= {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "watchdog_timer"}
    return runs.torchrun("variables", "--max-restarts=2 worker.py touch {out}", env)


def nccl_of_the_user(runs: Runs) -> None:
    assert env_of(variables(runs))["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def timer_file(runs: Runs) -> None:
    assert env_of(variables(runs))["TORCHELASTIC_TIMER_FILE"] == "watchdog_timer"
    assert "TORCHELASTIC_ENABLE_FILE_TIMER=1" in variables(runs).text
    assert "TORCHELASTIC_TIMER_FILE" not in env_of(four(runs))


def health_port(runs: Runs) -> None:
    assert env_of(variables(runs))["TORCHELASTIC_HEALTH_CHECK_PORT"] == "12345"
    assert "TORCHELASTIC_HEALTH_CHECK_PORT=12345" in variables(runs).text
    assert "TORCHELASTIC_HEALTH_CHECK_PORT" not in env_of(four(runs))


def bipolar(runs: Runs) -> None:
    done = runs.torchrun("bipolar", "--nproc-per-node=4 --max-restarts=2 worker.py odd {out}")
    fails(done)
    counts = {told["env"]["TORCHELASTIC_RESTART_COUNT"] for told in done.told.values()}
    assert max(counts) == "2"  # a rank that is stopped before it tells has told in an earlier attempt


def once(runs: Runs) -> None:
    done = runs.torchrun("once", "--nproc-per-node=2 --max-restarts=3 worker.py once {out}")
    ran(done, {"0", "1"})
    assert {told["env"]["TORCHELASTIC_RESTART_COUNT"] for told in done.told.values()} == {"1"}


def custom_prefix(runs: Runs) -> None:
    template = "[${role_name}-${local_rank}:${rank}]:"
    line = "--nproc-per-node=2 --role=sum --tee=3 worker.py touch {out}"
    done = runs.torchrun("prefix", line, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template})
    ran(done, {"0", "1"})
    for rank in range(2):
        assert f"[sum-{rank}:{rank}]:out of {rank}" in done.text and f"[sum-{rank}:{rank}]:err of {rank}" in done.text


def drift(runs: Runs) -> None:
    done = runs.torchrun("drift", "--nnodes=2 worker.py drift {out}")
    ran(done, {"0", "1"})
    assert "end of 0" in done.text and "end of 1" in done.text


def fails_at_once(runs: Runs) -> None:
    done = runs.torchrun("odd-sleeps", "--nnodes=2 --nproc-per-node=2 worker.py odd-sleeps {out}")
    fails(done)
    assert "end of" not in done.text  # the others were stopped, and did not sleep to their end


def starts(topology: Topology) -> Iterator[StartReplica]:
    """Yield the orders that start the workers, in a simulation without faults."""
    for line in simulate(graph_of(topology)).lines:
        yield from (effect for effect in getattr(line, "effects", ()) if isinstance(effect, StartReplica))


def homogeneous(runs: Runs) -> None:
    """Assert that ranks are consecutive in each role and replica, over three roles in one world."""
    sizes = {"master": (1, 1), "trainer": (4, 4), "ps": (2, 3)}
    t = Topology("job", nodes=[Node(cpu=8) for _ in range(7)])
    roles = [t.role(name, "true", replicas=f"{count}x{procs}", apart=True) for name, (count, procs) in sizes.items()]
    t.world("all", *roles)
    every = list(starts(t))
    ranks = sorted(start.rank + local for start in every for local in range(sizes[start.replica.role][1]))
    assert ranks == list(range(23)) and {start.world_size for start in every} == {23}
    for name, (count, procs) in sizes.items():
        own = [start for start in every if start.replica.role == name]
        assert {start.role_world_size for start in own} == {count * procs}
        assert sorted(start.role_rank for start in own) == [index * procs for index in range(count)]


def elastic_job() -> Topology:
    t = Topology("job", nodes=2)
    t.role("default", "true", replicas="1:2x2", apart=True, restart=Restart(max_restarts=2))
    return t


def survives(faults: str) -> None:
    assert simulate(graph_of(elastic_job()), *faults.split()).job.outcome == "succeeded"


def labels() -> None:
    theirs, ours = (outcome_of(f"--role={name}", "x.py").graph for name in ("master", "worker"))
    with pytest.raises(FlowdistError, match="--role is worker here, and master on the host"):
        as_here(theirs, ours)


def tensors(runs: Runs) -> None:
    def make(folder: Any) -> list[Any]:
        return flowdist.launch(random_tensor, procs=2, runs=folder, quiet=True, start="spawn")

    assert [tuple(tensor.shape) for tensor in runs.once("tensors", make)] == [(100, 100)] * 2


def random_tensor() -> Any:
    import torch

    return torch.rand(100, 100)


CASES = [
    Case(
        PEER,
        "test_dummy_compute",
        "two processes return tensors of 100 by 100",
        tensors,
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_happy_function",
        "workers that do nothing succeed",
        lambda runs: ran(four(runs), {*"0123"}),
        is_real=True,
    ),
    Case(
        PEER,
        "test_check_master_addr_port_override",
        "--master-port is the port of the store",
        lambda runs: holds(what_becomes_of(["--master-port=42", "x.py"]).notes == ""),
    ),
    Case(PEER, "test_run_check_env_function", "sixteen variables are set in a worker", names_are_set, is_real=True),
    Case(
        PEER,
        "test_run_check_nccl_async_error_handling_env",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=0 of the user stays",
        nccl_of_the_user,
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_check_nccl_async_error_handling_env_default",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING is 1 by default",
        nccl_default,
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_agent_local_watchdog_setup_enabled",
        "workers see TORCHELASTIC_TIMER_FILE; the watchdog itself does not run",
        timer_file,
        "differs",
        "docs/torchrun.md: the watchdog of torch's agent does not run here",
        True,
    ),
    Case(
        PEER,
        "test_run_agent_local_watchdog_setup_disabled",
        "without the variable, workers see no TORCHELASTIC_TIMER_FILE",
        lambda runs: holds("TORCHELASTIC_TIMER_FILE" not in env_of(four(runs))),
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_agent_healthcheck_setup_enabled",
        "workers see TORCHELASTIC_HEALTH_CHECK_PORT; no health check is served",
        health_port,
        "differs",
        "docs/torchrun.md: no health check is served",
        True,
    ),
    Case(
        PEER,
        "test_run_agent_healthcheck_setup_disabled",
        "without the variable, workers see no TORCHELASTIC_HEALTH_CHECK_PORT",
        lambda runs: holds("TORCHELASTIC_HEALTH_CHECK_PORT" not in env_of(four(runs))),
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_function_with_return_value",
        "what a function returns comes back",
        function_results,
        is_real=True,
    ),
    Case(
        PEER, "test_simple_dist_sum", "the sum over the ranks is right", lambda runs: summed(by_tcp(runs)), is_real=True
    ),
    Case(
        PEER,
        "test_run_distributed_sum_homogeneous",
        "two agents of four workers have the ranks 0 to 7",
        lambda runs: [ran(done, {*"01234567"}) for done in two_hosts(runs)],
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_with_custom_log_lines",
        "a template of role name, local rank and rank is the prefix of each line",
        custom_prefix,
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_sad_function",
        "the launcher's TORCHELASTIC_ERROR_FILE has the message of the worker that failed first",
        outer_file,
        is_real=True,
    ),
    Case(
        PEER,
        "test_run_bipolar_function",
        "odd ranks fail always: after two restarts the job has failed",
        bipolar,
        is_real=True,
    ),
    Case(
        PEER,
        "test_correct_rank_assignment_homogeneous",
        "1, 4 x 4 and 2 x 3 workers of three roles: ranks are consecutive in each role (in the simulator)",
        homogeneous,
    ),
    Case(
        PEER,
        "test_correct_rank_assignment_heterogeneous",
        "agents of one job with different --role",
        lambda runs: labels(),
        "refused",
        "docs/hosts.md: `--role` must not differ",
    ),
    Case(
        PEER,
        "test_torch_rpc",
        "two agents with different --role call each other by RPC",
        lambda runs: labels(),
        "refused",
        "docs/hosts.md: `--role` must not differ",
    ),
    Case(
        PEER,
        "test_double_agent_fault_tolerance",
        "one of two agents is killed and comes back: the job succeeds (in the simulator)",
        lambda runs: survives("node1@3s/5s"),
    ),
    Case(
        PEER,
        "test_double_agent_elastic",
        "one of two agents is killed for good: the other one succeeds alone (in the simulator)",
        lambda runs: survives("node1@3s"),
    ),
    Case(
        PEER,
        "test_no_exit_barrier_on_failure",
        "two agents: odd ranks fail, the others are stopped at once",
        fails_at_once,
        is_real=True,
    ),
    Case(
        PEER,
        "test_workers_drift_success",
        "two agents whose workers end 2 s after each other succeed",
        drift,
        is_real=True,
    ),
    Case(
        PEER,
        "test_rank_restart_after_failure",
        "rank 1 kills itself once, with restarts left: the job succeeds",
        once,
        is_real=True,
    ),
    Case(
        PEER,
        "every test with etcd or etcd-v2",
        "the same with an etcd server",
        lambda runs: refused(["--rdzv-backend=etcd-v2", "x.py"], "needs no rendezvous service"),
        "refused",
        "docs/torchrun.md: others, such as `etcd`, are refused",
    ),
]
