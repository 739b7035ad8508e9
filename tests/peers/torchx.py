"""Cases of TorchX's component tests: dist_test.py, structured_arg_test.py and the reading of --env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.cli.run.components import variables_of
from flowdist.components import ddp, names_of, parse_j, spmd
from flowdist.components.builtins import DEBUG, translated
from flowdist.dsl import Topology
from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems, TopologyProblems
from flowdist.graph import RoleGraph, RoleSpec
from tests.peers.case import Case, holds

DIST, STRUCTURED, TYPES, SPECS = (
    "components/test/dist_test.py",
    "components/test/structured_arg_test.py",
    "util/test/types_test.py",
    "specs/test/api_test.py",
)


def graph_of(topology: Topology) -> RoleGraph:
    return compile_topology(topology, Problems())  # the script need not be there


def role_of(topology: Topology) -> RoleSpec:
    (role,) = graph_of(topology).roles
    return role


def env_of(topology: Topology) -> dict[str, Any]:
    return dict(role_of(topology).env)


def refused(make: Callable[[], object], words: str = "") -> None:
    """Assert that this is refused with these words."""
    with pytest.raises(TopologyProblems) as caught:
        make()
    assert words in caught.value.problems[0].message, caught.value.problems


def bad_sizes() -> None:
    for j in ("1x", "x2", ":3", ":2x1", "1x2:3"):
        refused(lambda j=j: parse_j(j), "cannot be read")  # type: ignore[misc]


def debug_flags() -> None:
    assert DEBUG.items() <= env_of(ddp(script="foo.py", debug=True)).items() and len(DEBUG) == 4


def unchanged() -> None:
    env = {"FOO": "bar"}
    made = ddp(script="foo.py", env=env)
    assert env == {"FOO": "bar"} and "TORCHX_TRACKING_EXPERIMENT_NAME" in env_of(made)


def tracking(options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of experiment and run that workers see."""
    env = env_of(spmd("-a", "b", **options))
    return env["TORCHX_TRACKING_EXPERIMENT_NAME"], env["TORCHX_TRACKING_RUN_NAME"]


def named(name: str, experiment: str, run: str) -> None:
    """Assert what --name becomes, with a script and with a module."""
    given = {} if name == "-" else {"name": name}
    for program in ({"script": "foo/bar.py"}, {"m": "foo.bar"}):
        assert tracking({**program, **given}) == (experiment, run)


def one_program() -> None:
    refused(spmd, "exactly one of --script and -m")
    refused(lambda: spmd(m="foo.bar", script="foo/bar.py"), "exactly one of --script and -m")


def timers() -> None:
    """Assert that the timers of --rdzv_conf are honoured: they are those of a role."""
    role = role_of(ddp(script="foo.py", rdzv_conf="join_timeout=600,last_call_timeout=7,close_timeout=600,timeout=600"))
    assert (role.pending_timeout_ns, role.join_window_ns) == (600 * 10**9, 7 * 10**9)


def macros() -> None:
    assert translated("--id ${app_id} ${replica_id}") == "--id ${run_id} ${replica_index}"
    assert translated("$app_id/${img_root}/x") == "${run_id}/./x" and translated("$$5") == "${$}5"
    assert role_of(ddp("${app_id}", script="foo.py", env={"A": "${replica_id}"})).command[-1] == "${run_id}"


def no_image() -> None:
    refused(lambda: ddp("${base_img_root}", script="foo.py"), "${base_img_root}")
    refused(lambda: ddp("${macros.app_id}", script="foo.py"), "${macros.app_id}")


def pairs(text: str, values: dict[str, str]) -> None:
    assert variables_of([text]) == values


def sizes() -> None:
    assert parse_j("2x4") == (2, 2, 4) and parse_j("2x16") == (2, 2, 16)
    refused(lambda: parse_j("2x2x2"), "cannot be read")


def uneven() -> None:
    """Assert that two processes on four GPUs are refused (FD111), and four are not."""
    for procs in (2, 4):
        problems = Problems()
        compile_topology(spmd(m="foo.bar", j=f"1x{procs}", gpu=4), problems)
        assert ("FD111" in [problem.code for problem in problems.sorted()]) == (procs == 2)


def bare() -> None:
    """Assert that two nodes have a process for each GPU, and that nodes without GPUs are refused."""
    graph = graph_of(spmd(m="foo.bar", j="2", gpu=8))
    assert (len(graph.cluster.nodes), graph.roles[0].procs) == (2, 8)
    refused(lambda: spmd(m="foo.bar", j="2"), "as many processes as a node has GPUs are meant")


def static() -> None:
    """Assert that a static rendezvous is taken: node N has the ranks of replica N, as in every job here."""
    assert role_of(ddp(script="foo.py", j="2x4", rdzv_backend="static")) == role_of(ddp(script="foo.py", j="2x4"))


def names() -> None:
    expected = {"/": ("default-experiment", "baz"), "/foo": ("default-experiment", "foo"), "foo/": ("foo", "baz")}
    expected |= {"foo/bar": ("foo", "bar"), "foobar": ("default-experiment", "foobar")}
    for program in ("baz", "bar/baz.py"):
        assert {name: names_of(name, program) for name in expected} == expected


def cli_refuses(*words: str) -> None:
    """Assert that `flowdist run dist.ddp` refuses these options."""
    done = CliRunner().invoke(cli, ["run", "dist.ddp", "-m", "json.tool", *words])
    assert done.exit_code == 2 and "error[FD154]" in done.output, done.output


CASES = [
    Case(DIST, "test_ddp", "dist.ddp makes one role", lambda runs: holds(role_of(ddp(script="foo.py")).procs == 2)),
    Case(
        DIST,
        "test_ddp_mounts",
        "mounts become those of a container",
        lambda runs: refused(lambda: ddp(script="foo.py", mounts=["type=bind", "src=/dst"]), "nothing to mount"),
        "refused",
        "docs/torchx.md: processes on this machine see its files",
    ),
    Case(
        DIST,
        "test_ddp_parse_j",
        "1x2 is one node with two processes, 1:2x3 is elastic",
        lambda runs: holds(parse_j("1x2") == (1, 1, 2) and parse_j("1:2x3") == (1, 2, 3)),
    ),
    Case(
        DIST,
        "test_ddp_parse_j (2)",
        "2 is one node with two processes",
        lambda runs: holds(parse_j("2") == (1, 1, 2)),
    ),
    Case(DIST, "test_ddp_parse_j_exception", "1x, x2, :3, :2x1 and 1x2:3 are refused", lambda runs: bad_sizes()),
    Case(DIST, "test_ddp_debug", "debug sets four variables", lambda runs: debug_flags()),
    Case(
        DIST,
        "test_ddp_metadata",
        "metadata goes to the scheduler",
        lambda runs: refused(lambda: ddp(script="foo.py", metadata={"key": "value"}), "no scheduler gets it"),
        "refused",
        "docs/torchx.md: no scheduler starts the job",
    ),
    Case(
        DIST,
        "test_ddp_does_not_mutate_caller_env_and_metadata",
        "the caller's env stays as it is",
        lambda runs: unchanged(),
    ),
    Case(
        DIST,
        "test_ddp_rdzv_backend_static",
        "the timers of rdzv_conf are those of the job",
        lambda runs: timers(),
    ),
    Case(
        DIST,
        "test_ddp_rdzv_backend_static (2)",
        "rdzv_backend=static",
        lambda runs: static(),
    ),
    Case(
        DIST,
        "test_validate_spmd",
        "dist.spmd makes one role",
        lambda runs: holds(role_of(spmd(m="foo.bar")).procs == 1),
    ),
    Case(
        DIST,
        "test_spmd_metadata",
        "metadata goes to the scheduler",
        lambda runs: refused(lambda: spmd(script="foo.py", metadata={"key": "value"}), "no scheduler gets it"),
        "refused",
        "docs/torchx.md: no scheduler starts the job",
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_no_name",
        "without a name: default-experiment, and the run of the program's name",
        lambda runs: named("-", "default-experiment", "bar"),
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_no_name (2)",
        "a script and a module, or neither, are refused",
        lambda runs: one_program(),
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_with_name",
        "baz/trial_1: workers see both names",
        lambda runs: named("baz/trial_1", "baz", "trial_1"),
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_with_name (2)",
        "baz/trial_1: the app is called trial_1",
        lambda runs: holds(graph_of(spmd(script="foo/bar.py", name="baz/trial_1")).name == "trial_1"),
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_with_experiment_name",
        "baz/: the run has the program's name",
        lambda runs: named("baz/", "baz", "bar"),
    ),
    Case(
        DIST,
        "test_spmd_call_by_module_or_script_with_run_name",
        "/trial_1: the experiment is default-experiment",
        lambda runs: named("/trial_1", "default-experiment", "trial_1"),
    ),
    Case(
        STRUCTURED, "ArgNameTest.test_create", "five forms of a name, for a module and a script", lambda runs: names()
    ),
    Case(STRUCTURED, "ArgNameTest.test_create (2)", "exactly one program", lambda runs: one_program()),
    Case(STRUCTURED, "ArgJTest.test_create", "2x4 and 2x16 are taken, 2x2x2 is refused", lambda runs: sizes()),
    Case(
        STRUCTURED,
        "ArgJTest.test_create (2)",
        "-j 2 means as many processes as the host has GPUs",
        lambda runs: bare(),
    ),
    Case(
        STRUCTURED,
        "ArgJTest.test_create (3)",
        "fewer processes than the host has GPUs, 2x4 of 8, are a warning there, and refused here",
        lambda runs: uneven(),
        "refused",
        "docs/errors.md: ### FD111",
    ),
    Case(
        TYPES,
        "to_dict: several pairs",
        "FOO=v1,v2,BAR=v3",
        lambda runs: pairs("FOO=v1,v2,BAR=v3", {"FOO": "v1,v2", "BAR": "v3"}),
    ),
    Case(
        TYPES,
        "to_dict: semicolons",
        "FOO=v1;v2;BAR=v3",
        lambda runs: pairs("FOO=v1;v2;BAR=v3", {"FOO": "v1;v2", "BAR": "v3"}),
    ),
    Case(
        TYPES, "to_dict: empty values", "FOO='',BAR=\"\"", lambda runs: pairs("FOO='',BAR=\"\"", {"FOO": "", "BAR": ""})
    ),
    Case(
        TYPES,
        "to_dict: quoted values",
        "what is between quotation marks is not split, and the marks are removed",
        lambda runs: pairs("FOO=\"a = and , and ;\",BAR='x,B=1'", {"FOO": "a = and , and ;", "BAR": "x,B=1"}),
    ),
    Case(
        TYPES,
        "to_dict: no pair",
        "FOO alone is refused",
        lambda runs: refused(lambda: variables_of(["FOO"]), "has no value"),
    ),
    Case(
        SPECS,
        "MacrosTest",
        "${app_id}, ${replica_id} and ${img_root} are replaced in arguments and variables, with and without braces",
        lambda runs: macros(),
    ),
    Case(
        SPECS,
        "MacrosTest (2)",
        "${base_img_root} is replaced",
        lambda runs: no_image(),
        "refused",
        "docs/torchx.md: `${base_img_root}`",
    ),
]
