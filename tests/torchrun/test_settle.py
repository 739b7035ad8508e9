"""Options of torchrun as a topology: the role, its sizes, times and variables, and the messages of refusals."""

from __future__ import annotations

import socket

import msgspec
import pytest

from flowdist.errors import FlowdistError
from flowdist.graph import SECOND, JobOptions, Resources
from flowdist.torchrun.options import read_options
from flowdist.torchrun.rendezvous import Rendezvous, as_here, check_store_port, host_of, is_this_machine
from flowdist.torchrun.settle import comma_separated, for_worker, settle
from tests.torchrun.harness import outcome_of, what_becomes_of


def sizes(*words: str, gpus: tuple[str, ...] = (), cpus: int = 2) -> tuple[int, int, int, int, int]:
    """Return minimum, maximum, processes, GPUs of a replica, and nodes; 0 nodes means this machine as one node."""
    outcome = outcome_of(*words, "x.py", gpus=gpus, cpus=cpus)
    role, nodes = outcome.role, len(outcome.graph.cluster.nodes)
    return role.min_replicas, role.max_replicas, role.procs, role.resources.gpu, nodes


def test_nodes_and_processes() -> None:
    assert sizes() == (1, 1, 1, 0, 0)
    assert sizes("--nnodes", "1:4", "--nproc-per-node", "2") == (1, 4, 2, 0, 4)
    assert sizes("--nnodes=3") == (3, 3, 1, 0, 3)
    assert sizes("--nproc-per-node", "cpu", cpus=6) == sizes("--nproc-per-node", "auto", cpus=6) == (1, 1, 6, 0, 0)


def test_gpus_are_left_to_local_rank_on_one_node_and_shared_out_to_several() -> None:
    four = ("0", "1", "2", "3")
    assert sizes("--nproc-per-node", "gpu", gpus=four) == sizes("--nproc-per-node", "auto", gpus=four)
    assert sizes("--nproc-per-node", "gpu", gpus=four) == (1, 1, 4, 0, 0)
    assert sizes("--nnodes", "2", "--nproc-per-node", "gpu", gpus=four) == (2, 2, 2, 2, 2)
    assert sizes("--nnodes", "2", "--nproc-per-node", "3", gpus=four) == (2, 2, 3, 0, 2)


def test_each_node_has_one_replica() -> None:
    outcome = outcome_of("--nnodes", "2", "x.py")
    assert outcome.role.placement.apart == ("default",)


def test_the_command_is_what_torchrun_would_start() -> None:
    import sys

    assert outcome_of("x.py", "--lr", "1").role.command == ("python", "x.py", "--lr", "1")
    assert outcome_of("-m", "a.b", "x").role.command == ("python", "-m", "a.b", "x")
    assert outcome_of("--no-python", "./x.sh", "y").role.command == ("./x.sh", "y")
    assert outcome_of("--no-python", "python", "y").role.command[0].endswith("/python")  # of PATH, not ours
    assert outcome_of("--run-path", "--no-python", "/x.py").role.command == (sys.executable, "/x.py")


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("plain", "plain"),
        ("$local_rank ${local_rank}", "${local_rank} ${local_rank}"),
        ("$local_ranks $LOCAL_RANK", "$local_ranks $LOCAL_RANK"),
        ("${oc.env:HOME}", "${$}{oc.env:HOME}"),
        ("$$ $$$$local_rank", "$ $$local_rank"),
        ("$${rank}", "${$}{rank}"),
    ],
)
def test_arguments_are_as_torchrun_gives_them(word: str, ours: str) -> None:
    assert for_worker(word) == ours


def test_nothing_of_the_users_is_a_macro_of_ours() -> None:
    from flowdist.runtime.worker_env.environment import expand

    values = {"local_rank": "5", "rank": "7", "$": "$"}
    for word in ("${rank}", "${oc.env:HOME}", "${$}{rank}", "${", "a${}b", "$${rank}$$"):
        assert expand(for_worker(word), values) == word.replace("$$", "$")
    assert expand(for_worker("${local_rank}${rank}"), values) == "5${rank}"


def test_a_role_has_the_name_that_was_given_or_one_like_it() -> None:
    def names(role: str) -> tuple[str, str | None]:
        spec = outcome_of("--role", role, "x.py").role
        return spec.name, dict(spec.env).get("ROLE_NAME")

    assert names("trainer") == ("trainer", None)
    assert names("Trainer_X") == ("trainer_x", "Trainer_X")
    assert names("") == ("default", "")
    assert names("all") == ("all-role", "all")
    assert names("node1") == ("node1-role", "node1")
    assert names("${rank}") == ("rank", "${$}{rank}")


def test_a_run_id_counts_unless_standalone_makes_its_own() -> None:
    outcome = outcome_of("--rdzv-id", "job/7", "x.py")
    assert outcome.run_id == "job/7" and dict(outcome.role.env) == {"TORCHELASTIC_RUN_ID": "job/7"}
    assert outcome_of("x.py").run_id == "" and outcome_of("--standalone", "--rdzv-id", "7", "x.py").run_id == ""


def test_virtual_local_ranks_are_a_field_of_the_role() -> None:
    for words in ([], ["--nnodes", "2"]):
        outcome = outcome_of("--virtual-local-rank", *words, "x.py", env={"CUDA_VISIBLE_DEVICES": "4,7"})
        assert outcome.role.virtual_local_rank and not outcome.role.env
    assert not outcome_of("x.py").role.virtual_local_rank


def test_workers_are_bound_to_the_node_of_their_gpu_which_they_then_have() -> None:
    role = outcome_of("--numa-binding", "node", "--nproc-per-node", "2", "x.py", gpus=("0", "1", "2")).role
    assert (role.numa, role.resources.gpu, role.procs) == ("node", 2, 2)
    two = outcome_of("--numa-binding", "node", "--nnodes", "2", "x.py", gpus=("0", "1"))
    assert (two.role.numa, two.role.resources.gpu, [node.gpu for node in two.graph.cluster.nodes]) == (
        "node",
        1,
        [1, 1],
    )
    assert outcome_of("x.py", gpus=("0",)).role.numa == ""


def test_restarts_and_times() -> None:
    role = outcome_of("x.py").role
    assert role.restart is None and (role.grace_ns, role.stop_grace_ns) == (30 * SECOND, 2 * SECOND)
    role = outcome_of("--max-restarts", "3", "--shutdown-timeout", "5", "x.py").role
    assert role.restart is not None and (role.restart.scope, role.restart.max_restarts) == ("role", 3)
    assert role.restart.backoff_ns == 0, "torchrun restarts at once, as often as it may"
    assert role.grace_ns == role.stop_grace_ns == 5 * SECOND
    role = outcome_of("x.py", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}).role
    assert role.grace_ns == role.stop_grace_ns == 7 * SECOND
    role = outcome_of("--rdzv-conf", "join_timeout=60, last_call_timeout=1.5", "x.py").role
    assert (role.pending_timeout_ns, role.join_window_ns) == (60 * SECOND, 3 * SECOND // 2)


def test_keep_alive_timers_of_torchrun_leave_heartbeat_and_lease_alone() -> None:
    conf = "keep_alive_interval=60,keep_alive_max_attempt=1,heartbeat_timeout=1,cas_backoff_max_seconds=1"
    became = what_becomes_of(["--rdzv-conf", conf, "x.py"])
    assert "keep_alive_interval=60 of --rdzv-conf" in became.notes and "heartbeat_timeout=1 of" in became.notes
    assert outcome_of("--rdzv-conf", conf, "x.py").graph.options == JobOptions()


def test_filters_are_split_as_torchrun_splits_them() -> None:
    assert comma_separated("a, b,,c,,, d,") == ("a", "b,c,", "d")
    assert comma_separated("") == ()
    assert "finds nothing: no stderr is tee'd" in what_becomes_of(["--duplicate-stderr-filters", "x", "x.py"]).notes


def test_masks_by_local_rank_reach_beyond_nine() -> None:
    streams = outcome_of("-r", "0:1,12:3", "-t", "2", "--nproc-per-node", "2", "x.py").streams
    assert (streams.redirects, streams.tee) == ({0: 1, 12: 3}, {0: 2, 1: 2})


def test_several_nodes_are_said_to_be_of_this_machine() -> None:
    became = what_becomes_of(["--nnodes", "2", "--rdzv-conf", "timeout=9", "--start-method", "fork", "x.py"])
    assert became.notes.splitlines() == [
        "these change nothing here: --start-method fork, timeout=9 of --rdzv-conf (docs/torchrun.md says why)",
        "the 2 nodes are logical nodes of this machine: start this command once "
        "(or name an --rdzv-endpoint, and start it on each host)",
    ]
    assert "keeps the logs" in what_becomes_of(["--log-dir", "/dev/null", "x.py"]).notes


@pytest.mark.parametrize(
    ("words", "code", "message", "help"),
    [
        ("--nnodes 4:2", "FD151", "--nnodes 4:2: '4:2' is not a range of nodes", "--nnodes 1:4"),
        ("--nnodes two", "FD151", "'two' is neither N nor MIN:MAX", "--nnodes 2"),
        ("--nproc-per-node 0", "FD151", "--nproc-per-node 0: it must be 1 to 10000", "--nproc-per-node 1"),
        ("--nproc-per-node gpu", "FD150", "this machine has 0 GPUs for 1 node", "cpu"),
        ("--nproc-per-node xpu", "FD150", "no 'xpu'", "cpu, gpu or auto"),
        ("--max-restarts -1", "FD151", "--max-restarts -1: it must be 0 to", "--max-restarts 1"),
        ("--max-restarts x", "FD151", "'x' is not a whole number", "--max-restarts 1"),
        ("--monitor-interval soon", "FD151", "'soon' is not a number of seconds", "--monitor-interval=30"),
        ("--start-method vfork", "FD151", "there is no such method", "forkserver"),
        ("--rdzv-backend etcd-v2", "FD150", "needs no rendezvous service", "c10d"),
        ("--rdzv-endpoint 192.0.2.7:29400", "FD150", "192.0.2.7 is another", "start this command on each host"),
        ("--master-addr [2001:db8::1]", "FD150", "2001:db8::1 is another", "start this command on each host"),
        ("--local-addr 192.0.2.7", "FD150", "192.0.2.7 is not an address of this machine", "that the others reach"),
        ("--node-rank 1", "FD150", "one host is asked for", "--nnodes 2"),
        ("--nnodes 2 --node-rank 2", "FD151", "whose ranks are 0 to 1", "--node-rank 1"),
        ("--nnodes 2 --rdzv-endpoint a:b:c", "FD151", "'a:b:c' is no HOST:PORT", "host0:29400"),
        ("--nnodes 2 --rdzv-endpoint a --rdzv-conf is_host=so", "FD151", "neither yes nor no", "is_host=0"),
        ("--master-port 99999", "FD151", "it must be 0 to 65535", "--master-port"),
        ("--rdzv-conf join_timout=3", "FD151", "'join_timout' is unknown", '"join_timeout"'),
        ("--rdzv-conf join_timeout", "FD151", "'join_timeout' is not a NAME=VALUE", "join_timeout=600"),
        ("--rdzv-conf join_timeout=x", "FD151", "'x' is not a number of seconds", "join_timeout=30"),
        ("--rdzv-conf is_host=0", "FD150", "no other runs the controller", "leave is_host out"),
        ("--signals-to-handle SIGTERM,SIGUSR1", "FD150", "forwards no SIGUSR1", "leave it out"),
        ("--event-log-handler console", "FD150", "journal.jsonl", "leave it out"),
        ("--logs-specs mine", "FD150", "torch's agent", "--log-dir"),
        ("--numa-binding node", "FD150", "this machine has 0 GPUs for 1 worker", "leave it out"),
        ("--numa-binding socket", "FD150", "and not by 'socket'", "--numa-binding node"),
        ("--no-python -m", "FD151", "it does not go with --module", "keep one"),
        ("-r 5", "FD151", "'5' cannot be read", "-r 0:1,1:2"),
        ("-t 0:1;1:2", "FD151", "cannot be read", "-t 3"),
        ("--local-ranks-filter 0,x", "FD151", "'x' is not a local rank", "--local-ranks-filter 0,1"),
        (f"--log-dir {__file__}", "FD151", "it is a file", "name a folder"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(words: str, code: str, message: str, help: str) -> None:
    became = what_becomes_of([*words.split(), "x.py"])
    assert became.outcome is None and len(became.refused.splitlines()) == 1, became
    assert became.refused.startswith(code) and message in became.refused and help in became.helps


def test_every_problem_is_told_at_once() -> None:
    words = "--nnodes 0 --nproc-per-node x --rdzv-backend etcd --local-addr 192.0.2.7 --tee 9 x.py"
    assert len(what_becomes_of(words.split()).refused.splitlines()) == 5


def rendezvous(*words: str, env: dict[str, str] | None = None) -> Rendezvous:
    found = outcome_of("--nnodes", "1:4", *words, "x.py", env=env).rendezvous
    assert found is not None
    return found


def test_several_nodes_and_a_place_to_meet_make_this_command_one_of_several() -> None:
    assert outcome_of("--nnodes", "1:4", "x.py").rendezvous is None
    assert outcome_of("--rdzv-endpoint", "localhost", "x.py").rendezvous is None, "one node needs no others"
    assert outcome_of("--nnodes", "2", "--standalone", "--rdzv-endpoint", "a:1", "x.py").rendezvous is None
    found = rendezvous("--rdzv-endpoint", "host0:1234", "--rdzv-id", "job1", "--rdzv-backend", "c10d")
    assert (found.endpoint, found.runs_controller, found.job_id) == (("host0", 1234), False, "job1")
    assert (found.hosts, found.join_timeout_s, found.token, found.local_addr) == (4, 600, "", "")
    assert str(rendezvous("--rdzv-endpoint", "[2001:db8::1]").endpoint) == "[2001:db8::1]:29400"


def test_the_controller_is_where_the_endpoint_is_unless_is_host_says_otherwise() -> None:
    local, other = ["--rdzv-endpoint", "127.0.0.1"], ["--rdzv-endpoint", "192.0.2.7"]
    assert rendezvous(*local).runs_controller is None and rendezvous(*other).runs_controller is False
    for text, runs in (("1", True), ("0", False), ("True", True), ("no", False)):
        assert rendezvous(*local, "--rdzv-conf", f"is_host={text}").runs_controller is runs
        assert rendezvous(*other, "--rdzv-conf", f"is_host={text}").runs_controller is runs


def test_a_static_rendezvous_is_where_node_rank_0_is() -> None:
    found = rendezvous("--node-rank", "0", "--master-addr", "10.1.2.3", "--master-port", "1234")
    assert (found.endpoint, found.runs_controller) == (("10.1.2.3", 1234), True)
    found = rendezvous("--node-rank", "3", "--master-addr", "127.0.0.1")
    assert (found.endpoint, found.runs_controller, found.node_rank) == (("127.0.0.1", 29500), False, "3")
    assert rendezvous("--master-addr", "127.0.0.1").runs_controller is None


def test_a_token_comes_from_the_variable_or_the_configuration_and_is_never_shown() -> None:
    place = ["--rdzv-endpoint", "a:1", "--rdzv-conf", "token=hush,join_timeout=5"]
    assert rendezvous(*place, env={"FLOWDIST_TOKEN": "other"}).token == "hush"
    assert rendezvous(*place).join_timeout_s == 5
    assert rendezvous(*place[:2], env={"FLOWDIST_TOKEN": "other"}).token == "other"
    assert "hush" not in what_becomes_of([*place[2:], "x.py"]).notes


def test_hosts_have_their_devices_and_their_folder_for_themselves() -> None:
    place = ["--nnodes", "2", "--rdzv-endpoint", "a:1"]
    assert sizes(*place, "--nproc-per-node", "gpu", gpus=("0", "1")) == (2, 2, 2, 0, 2)
    assert outcome_of(*place, "x.py").graph.options.controller_outage_ns == 30 * SECOND
    assert what_becomes_of([*place, "--virtual-local-rank", "x.py"]).refused == ""


def test_a_host_runs_its_own_command_in_the_job_of_another() -> None:
    theirs = outcome_of("--nnodes", "2", "--max-restarts", "3", "/there/x.py", "a").graph
    ours = outcome_of("--nnodes", "2", "/here/x.py", "b", env={}).graph
    (role,) = as_here(theirs, ours).roles
    assert role.command == ("python", "/here/x.py", "b") and role.restart == theirs.roles[0].restart
    uneven = outcome_of("--nnodes", "2", "--nproc-per-node", "2", "x.py").graph
    (role,) = as_here(theirs, uneven).roles
    assert (role.procs, theirs.roles[0].procs) == (2, 1)
    with pytest.raises(FlowdistError, match="--role is b here, and default on"):
        as_here(theirs, outcome_of("--nnodes", "2", "--role", "b", "x.py").graph)
    bound = msgspec.structs.replace(theirs.roles[0], resources=Resources(gpu=1))
    with pytest.raises(FlowdistError, match="--nproc-per-node is 2 here, and 1 on the host"):
        as_here(msgspec.structs.replace(theirs, roles=(bound,)), uneven)
    with pytest.raises(FlowdistError, match="runs a topology"):
        as_here(msgspec.structs.replace(theirs, roles=()), ours)


def test_this_machine_is_known_by_its_names_and_addresses() -> None:
    for host in ("", "localhost", "127.0.0.1", "127.8.8.8", socket.gethostname()):
        assert is_this_machine(host)
    for host in ("192.0.2.7", "2001:db8::1", "no such host", "x" * 300):
        assert not is_this_machine(host)
    assert host_of("head:29500") == host_of("head") == "head"
    assert host_of("[::1]:29500") == host_of("[::1]") == host_of("::1") == "::1"


def test_the_stores_listen_at_the_port_that_torchruns_store_would_have() -> None:
    def endpoint(*words: str) -> str:
        return settle(read_options([*words, "x.py"], {}), {}, (), 2).store_endpoint

    assert endpoint() == endpoint("--master-port", "0") == ""
    assert (
        endpoint("--master-port", "29611") == endpoint("--nnodes", "2", "--master-port", "29611") == "127.0.0.1:29611"
    )
    assert endpoint("--master-port", "29611", "--master-addr", "localhost") == "127.0.0.1:29611"
    assert endpoint("--master-port", "29611", "--master-addr", socket.gethostname()) == "0.0.0.0:29611"
    for other in ("--standalone", "--rdzv-endpoint=localhost:1", "--rdzv-backend=c10d", "--nnodes=2 --node-rank=0"):
        assert endpoint("--master-port", "29611", *other.split()) == "", "it names the port of something else there"
    assert "--master-port" not in what_becomes_of(["--master-port", "29611", "x.py"]).notes
    assert "--master-port" in what_becomes_of(["--standalone", "--master-port", "29611", "x.py"]).notes


def test_a_port_that_is_taken_is_refused_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FlowdistError, match=r"cannot be bound: address already in use\n"):
            check_store_port(endpoint)
    check_store_port(endpoint)


def test_quotation_marks_around_the_timers_are_removed() -> None:
    for conf in ("'join_timeout=5,last_call_timeout=1,timeout=5'", "join_timeout='5',last_call_timeout=\"1\""):
        role = outcome_of("--rdzv-conf", conf, "x.py").role
        assert (role.pending_timeout_ns, role.join_window_ns) == (5 * SECOND, SECOND)
    assert "is not a NAME=VALUE" in what_becomes_of(["--rdzv-conf", "join_timeout=''", "x.py"]).refused


def test_a_role_whose_name_is_changed_is_said() -> None:
    assert "call the role trainer_x" in what_becomes_of(["--role", "Trainer_X", "x.py"]).notes
    assert what_becomes_of(["--role", "trainer", "x.py"]).notes == ""


def test_a_variable_that_changes_nothing_is_said_when_it_is_set() -> None:
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCH_ELASTIC_WORKER_IDENTICAL": "0", "TORCHX_IMAGE": "x"}
    notes = what_becomes_of(["x.py"], env).notes
    assert notes == "these change nothing here: TORCHELASTIC_ENABLE_FILE_TIMER=1 (docs/torchrun.md says why)"
