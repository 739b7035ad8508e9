"""Builtins of TorchX: the topologies that they return, the problems of wrong arguments, and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.main import cli
from flowdist.cli.run.components import _notes, variables_of
from flowdist.components import ddp, names_of, parse_j, spmd
from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded, load_topology
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from flowdist.graph import RoleGraph, encode_graph
from tests.runtime.harness import Job


def graph_of(topology: Topology) -> RoleGraph:
    return compile_loaded(topology).graph


SELF = Path(__file__).name  # a script that is there: paths are relative to the file that calls


def test_ddp_is_one_elastic_role_with_a_node_for_each_replica() -> None:
    graph = graph_of(ddp("--lr", "1", script=SELF, j="2:4x8", cpu=4, memMB=2048, name="exp/Run_1", max_retries=3))
    (role,) = graph.roles
    assert (graph.name, role.name) == ("run_1", "test_components")
    assert role.command == ("python", SELF, "--lr", "1")
    assert (role.min_replicas, role.max_replicas, role.procs) == (2, 4, 8)
    assert role.restart is not None and (role.restart.scope, role.restart.max_restarts) == ("role", 3)
    assert len(graph.cluster.nodes) == 4 and role.placement.apart == (role.name,)
    assert all((node.cpu, node.memory) == (4, 2048 * 10**6) for node in graph.cluster.nodes)
    assert (role.resources.cpu, role.resources.memory) == (4, 2048 * 10**6)
    assert dict(role.env)["TORCHX_TRACKING_EXPERIMENT_NAME"] == "exp"


def test_the_defaults_are_torchxs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)
    (role,) = graph_of(ddp(m="json.tool")).roles
    assert (role.name, role.command, role.procs, role.restart) == ("tool", ("python", "-m", "json.tool"), 2, None)
    assert dict(role.env) == {
        "LOGLEVEL": "WARNING",
        "TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment",
        "TORCHX_TRACKING_RUN_NAME": "tool",
        "TORCHX_JOB_ID": "flowdist://torchx/${run_id}",
    }
    assert graph_of(spmd(m="json.tool")).roles[0].procs == 1


def test_spmd_is_ddp() -> None:
    assert encode_graph(graph_of(spmd("x", m="json.tool", j="2x4", name="a/b", debug=True, env={"A": "1"}))) == (
        encode_graph(graph_of(ddp("x", m="json.tool", j="2x4", name="a/b", debug=True, env={"A": "1"})))
    )


def test_debug_wins_and_loglevel_is_the_users() -> None:
    (role,) = graph_of(ddp(m="json.tool", debug=True, env={"LOGLEVEL": "DEBUG", "NCCL_DESYNC_DEBUG": "0"})).roles
    env = dict(role.env)
    assert (env["LOGLEVEL"], env["NCCL_DESYNC_DEBUG"], env["TORCH_DISTRIBUTED_DEBUG"]) == ("DEBUG", "1", "DETAIL")


def test_a_named_size_takes_the_place_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text('[resources.big]\ncpu = 6\ngpu = 4\nmemory = "64GiB"\n')
    (tmp_path / "x.py").touch()
    (tmp_path / "topology.py").write_text(
        "from flowdist.components import ddp, spmd\na = spmd(script='x.py', h='big', j='1x4')\n"
        "b = ddp(script='x.py', h='big', j='2x4', cpu=3)\n"
    )
    one = load_topology(f"{tmp_path}/topology.py:a").graph
    two = load_topology(f"{tmp_path}/topology.py:b").graph
    assert one.roles[0].resources.cpu == two.roles[0].resources.cpu == 6
    assert (len(one.cluster.nodes), len(two.cluster.nodes)) == (1, 2)
    for graph in (one, two):
        assert {(node.cpu, node.gpu, node.memory) for node in graph.cluster.nodes} == {(6, 4, 64 << 30)}
        assert graph.roles[0].resources.gpu == 4
    checked = CliRunner().invoke(cli, ["check", f"{tmp_path}/topology.py:b"])
    assert checked.exit_code == 0, checked.output


def test_spmd_has_gpus_of_its_own() -> None:
    graph = graph_of(spmd(m="json.tool", j="2x2", gpu=2))
    assert [node.gpu for node in graph.cluster.nodes] == [2, 2] and graph.roles[0].resources.gpu == 2


def test_a_bare_number_is_a_number_of_processes_for_ddp_and_of_nodes_for_spmd(tmp_path: Path) -> None:
    (tmp_path / "flowdist.toml").write_text("[resources.big]\ncpu = 6\ngpu = 4\n")
    (tmp_path / "x.py").touch()
    (tmp_path / "topology.py").write_text(
        "from flowdist.components import ddp, spmd\na = ddp(script='x.py', j='2')\n"
        "b = spmd(script='x.py', h='big', j='2')\nc = spmd(script='x.py', gpu=3, j=2)\n"
    )
    graphs = {name: load_topology(f"{tmp_path}/topology.py:{name}").graph for name in "abc"}
    sizes = {name: (len(graph.cluster.nodes), graph.roles[0].procs) for name, graph in graphs.items()}
    assert sizes == {"a": (1, 2), "b": (2, 4), "c": (2, 3)}


def test_a_static_rendezvous_is_what_every_job_has() -> None:
    static = graph_of(ddp(m="json.tool", j="2x2", rdzv_backend="static"))
    assert encode_graph(static) == encode_graph(graph_of(ddp(m="json.tool", j="2x2")))
    with pytest.raises(TopologyProblems, match="etcd"):
        ddp(m="json.tool", rdzv_backend="etcd")


def test_the_timers_of_rdzv_conf_are_those_of_the_role() -> None:
    (role,) = graph_of(ddp(m="json.tool", rdzv_conf="'join_timeout=9,last_call_timeout=1.5,timeout=3'")).roles
    assert (role.pending_timeout_ns, role.join_window_ns) == (9 * 10**9, 1_500_000_000)


def test_macros_of_torchx_are_translated_in_arguments_and_variables() -> None:
    (role,) = graph_of(ddp("--id=$app_id", "$$HOME", "${rank}", m="json.tool", env={"A": "${replica_id}"})).roles
    assert role.command[-3:] == ("--id=${run_id}", "${$}HOME", "${rank}") and dict(role.env)["A"] == "${replica_index}"


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("/", ("default-experiment", "main")),
        ("exp/", ("exp", "main")),
        ("/run", ("default-experiment", "run")),
        ("run", ("default-experiment", "run")),
        ("exp/run", ("exp", "run")),
        ("exp/run/2", ("exp", "run/2")),
    ],
)
def test_a_name_is_an_experiment_and_a_run(name: str, names: tuple[str, str]) -> None:
    assert names_of(name, "dir/main.py") == names
    assert names_of("/", "dir/my_main.py") == ("default-experiment", "my_main")


@pytest.mark.parametrize(
    ("j", "size"), [("2x8", (2, 2, 8)), ("2:4x8", (2, 4, 8)), (" 1x1 ", (1, 1, 1)), ("2", (1, 1, 2))]
)
def test_j_is_nodes_times_processes(j: str, size: tuple[int, int, int]) -> None:
    assert parse_j(j) == size


@pytest.mark.parametrize(
    ("j", "message", "help"),
    [
        ("4:2x2", "minimum 4 is larger than maximum 2", "write -j 2:4x2"),
        ("0x2", "a number that is not from 1 to 100,000", "-j 1x1"),
        ("2x999999", "a number that is not from 1 to 100,000", "-j 1x1"),
        ("2:4", "-j 2:4 cannot be read", "-j 2:4x8"),
        ("x8", "-j x8 cannot be read", "[MIN:]NNODESxNPROC"),
        ("-1x8", "-j -1x8 cannot be read", "-j 2x8"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(j: str, message: str, help: str) -> None:
    with pytest.raises(TopologyProblems) as caught:
        ddp(script=SELF, j=j)
    (problem,) = caught.value.problems
    assert problem.code == "FD153" and message in problem.message and help in problem.help
    assert problem.place.file == __file__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of --script and -m"),
        ({"script": "x.py", "m": "x"}, "one of --script and -m"),
        ({"script": "x.py", "mounts": ["type=bind", "src=/a"]}, "--mounts type=bind,src=/a: there is nothing to mount"),
        ({"script": "x.py", "image": "torch:2"}, "--image torch:2: processes on this machine are in no container"),
        ({"script": "x.py", "max_retries": -1}, "--max_retries -1 is below 0"),
        ({"script": "x.py", "metadata": {"a": "b"}}, "--metadata a=b: no scheduler gets it"),
        ({"script": "x.py", "env": {"A": "${base_img_root}"}}, "${base_img_root} in '${base_img_root}' cannot be"),
    ],
)
def test_what_cannot_be_honoured_is_refused(arguments: dict, message: str) -> None:  # type: ignore[type-arg]
    for component in (ddp, spmd):
        with pytest.raises(TopologyProblems) as caught:
            component(**arguments)
        (problem,) = caught.value.problems
        assert problem.code == "FD154" and message in problem.message


def problems_of(tmp_path: Path, call: str) -> list[Problem]:
    file = tmp_path / "topology.py"
    file.write_text(f"from flowdist.components import ddp\nt = {call}\n")
    with pytest.raises(TopologyProblems) as caught:
        load_topology(str(file))
    return list(caught.value.problems)


def test_in_a_topology_file_a_mistake_is_shown_at_its_argument(tmp_path: Path) -> None:
    (missing,) = problems_of(tmp_path, 'ddp(script="nope.py", j="2x1")')
    assert missing.code == "FD109" and str(tmp_path) in missing.help
    assert missing.format().splitlines()[3].count("^") == len('"nope.py"')
    (wrong,) = problems_of(tmp_path, 'ddp(m="json.tool", cpu="x")')
    assert wrong.message.startswith("node 'node0', role 'tool': cpu='x'")
    (size,) = problems_of(tmp_path, 'ddp(m="json.tool", j="2:4")')
    assert size.code == "FD153" and size.place.line == 2


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, ["run", *words])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("dist.spmd -j 2 -m json.tool", "error[FD153]: -j 2: as many processes as a node has GPUs are meant"),
        ("dist.ddp --rdzv_backend etcd -m json.tool", "error[FD154]: --rdzv_backend etcd: no service is needed"),
        ("dist.ddp --script no.py", "error[FD109]: role 'no': script 'no.py' is not found"),
        ("dist.ddp -m json.tool --cpu=-1", "error[FD105]: node 'node0', role 'tool': cpu=-1.0 must not be negative"),
        ("dist.ddp -m json.tool -h huge -j 2x1", "error[FD110]: node 'node0': resources='huge' is unknown"),
        ("dist.ddp -m json.tool --mounts a=b", "error[FD154]: --mounts a=b: there is nothing to mount into"),
        ("dist.ddp -m json.tool --rdzv_port 29500", "error[FD154]: --rdzv_port 29500: each generation has a store"),
        ("dist.ddp -m json.tool --metadata a=b", "error[FD154]: --metadata a=b: no scheduler gets it"),
        ("dist.ddp -m json.tool --rdzv_conf join_timeout=x", "error[FD154]: --rdzv_conf join_timeout=x: 'x' is not a"),
        ("dist.ddp -m json.tool --rdzv_conf is_host=1", "error[FD154]: --rdzv_conf is_host=1 cannot be honoured"),
        ("dist.ddp -m json.tool -- ${macros.app_id}", "error[FD154]: ${macros.app_id} in '${macros.app_id}' cannot"),
        ("dist.ddp -m json.tool --tee 3", "error[FD154]: --tee 3: the terminal shows all output"),
        ("dist.ddp -m json.tool --env A", "error[FD154]: --env A: 'A' has no value"),
        ("dist.ddp -m json.tool --set tool.cpus=3", "a role has no 'cpus' to set"),
        ("dist.ddp -m json.tool --fail nope@3s", "there is no 'nope'"),
        ("dist.spmd --cpu 3", "No such option '--cpu'"),
        ("--quiet dist.ddp", "dist.ddp has to come first"),
    ],
)
def test_on_the_command_line_a_mistake_is_told_in_words(words: str, text: str) -> None:
    done = invoke(*words.split())
    assert done.exit_code == 2 and text in done.output and "Traceback" not in done.output, done.output
    assert __name__ not in done.output and "components.py" not in done.output


def test_help_shows_the_options_of_torchx() -> None:
    for component in ("dist.ddp", "dist.spmd"):
        shown = invoke(component, "--help").output
        assert all(option in shown for option in ("--script", "-j,", "--max_retries", "--mounts", "--debug"))
        assert ("--memMB" in shown) == (component == "dist.ddp")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1,2;B=3", {"A": "1,2", "B": "3"}),
        ("A='1,B=2',C=\"\"", {"A": "1,B=2", "C": ""}),
        ("A=1 , B=' 2'", {"A": "1", "B": " 2"}),
        ("A=x'y'", {"A": "x'y'"}),
        ("A=", {"A": ""}),
    ],
)
def test_variables_are_read_as_torchx_reads_them(text: str, values: dict[str, str]) -> None:
    assert variables_of([text]) == values


def test_a_name_that_is_changed_and_what_has_no_effect_is_said() -> None:
    def notes(**options: str | None) -> list[str]:
        given = {"name": "/", "script": None, "m": "json.tool", **options}
        topology = ddp(name=str(given["name"]), m="json.tool")
        return _notes(topology, given, {"TORCHX_RANK0_HOST": "a"} if "rdzv_conf" in options else {})

    assert notes() == notes(name="exp/run") == notes(name="exp/") == notes(name="exp/trial_1") == []
    (said,) = notes(name="exp/Trial.1b")
    assert "call the run trial" in said and said.endswith("TORCHX_TRACKING_RUN_NAME is Trial.1b")
    (said,) = notes(rdzv_conf="join_timeout=3,timeout=9")
    assert "nothing here: timeout=9 of --rdzv_conf, TORCHX_RANK0_HOST=a (" in said


@pytest.mark.real
def test_a_builtin_runs(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import os, sys\nname = os.environ['TORCHX_TRACKING_EXPERIMENT_NAME']\nif os.environ['RANK'] == '3' and "
        "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(7)\nprint(name, sys.argv[1:], os.environ['A'])\n"
    )
    words = "dist.ddp -j 1:2x2 --name exp/first --env A=1,2,B=3 --max_retries 1 --script main.py -- --epochs 5"
    with Job(tmp_path, *words.split()) as job:
        assert job.finish() == 0 and job.alive() == [], job.text
        assert sum("exp ['--epochs', '5'] 1,2" in line for line in job.output) >= 4
        assert job.run_dir.name.startswith("first-") and "charged to main" in job.text
