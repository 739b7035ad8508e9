"""Every problem: its code and its place; one mistake does not hide another."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowdist.cli.inspect.topologies import check as command
from flowdist.dsl.load import load_topology
from flowdist.dsl.oneline import one_role_graph
from flowdist.dsl.problems.problem import Problem, TopologyProblems
from tests.dsl.test_load import problems_of, underlined
from tests.dsl.test_mistakes import MISTAKES

HEAD = "from flowdist import Node, On, Resources, Restart, Secret, Topology, Workload\n"
PACKAGE = Path(__file__).parents[2] / "flowdist"
SOURCES = [
    *sorted((PACKAGE / "dsl").rglob("*.py")),
    *sorted((PACKAGE / "torchrun").glob("*.py")),
    PACKAGE / "components/builtins.py",
    PACKAGE / "report/static/plan_faults.py",
    PACKAGE / "engines/interface.py",
]


def problems(tmp_path: Path, body: str, **options: object) -> list[Problem]:
    """Return the problems of a file with that body, in which `t` is a topology with four nodes."""
    return problems_of(tmp_path, HEAD + body, **options)  # type: ignore[arg-type]


MAIN = 't = Topology("x", nodes=4)\nmain = t.role("main", "true")\n'
WIDER_DOMAIN = 'Restart(then=Restart("domain", max_restarts=1))'
WIDER_IGNORE = 'Restart(then=Restart("job", max_restarts=1, then="ignore"))'
HANGS = 'workload=Workload(collective="hang")'
SLOW = 'workload=Workload(warmup="5m")'

CASES = [
    ("FD101", MAIN + 't.role("main", "true")', '"main"'),
    ("FD102", MAIN + 't.role("Big_Role", "true")', '"Big_Role"'),
    ("FD102", MAIN + 't.role("node3", "true")', '"node3"'),
    ("FD102", MAIN + 't.role("all", "true")', '"all"'),
    ("FD103", MAIN + 't.role("a", "true", replicas="4:2")', '"4:2"'),
    ("FD104", MAIN + 't.role("a", "true", replicas="two")', '"two"'),
    ("FD105", MAIN + 't.role("a", "true", replicas=0)', "0"),
    ("FD105", MAIN + 't.role("a", "true", restart=Restart(max_restarts=-1))', "-1"),
    ("FD105", MAIN + 't.role("a", "true", cpu=-2)', "-2"),
    ("FD106", MAIN + 't.role("a", "true", grace="a while")', '"a while"'),
    ("FD106", 't = Topology("x", lease="soon")\nt.role("a", "true")', '"soon"'),
    ("FD107", MAIN + 't.role("a", "true", memory="lots")', '"lots"'),
    ("FD108", MAIN + 't.role("a", [])', "[]"),
    ("FD108", MAIN + 't.role("a")', "t.role"),
    ("FD108", MAIN + 't.role("a", "echo \'x")', '"echo \'x"'),
    ("FD108", MAIN + 't.role("a", "true", script="x.py")', '"x.py"'),
    ("FD109", MAIN + 't.role("a", ["python", "nope.py"])', '["python", "nope.py"]'),
    ("FD109", MAIN + 't.role("a", module="no.such.module")', '"no.such.module"'),
    ("FD109", MAIN + 't.role("a", "no-such-program --x")', '"no-such-program --x"'),
    ("FD108", 't = Topology("x", on_incident=[])\nt.role("a", "true")', "[]"),
    ("FD109", 't = Topology("x", on_incident="python nope.py")\nt.role("a", "true")', '"python nope.py"'),
    ("FD120", 't = Topology("x", on_incident="echo ${rank}")\nt.role("a", "true")', '"echo ${rank}"'),
    ("FD134", 't = Topology("x", on_incident=3)\nt.role("a", "true")', "3"),
    ("FD110", MAIN + 't.role("a", "true", resources="big")', '"big"'),
    ("FD111", 't = Topology("x", nodes=[Node(gpu=4)])\nt.role("a", "true", gpu=2, replicas="1x3")', '"1x3"'),
    ("FD112", MAIN + 't.role("a", "true", cpu=99)', "99"),
    ("FD113", MAIN + 't.role("a", "true", replicas=40)', "40"),
    ("FD114", MAIN + 't.role("a", "true", gpu=1)', "1"),
    ("FD115", MAIN + 't.role("a", "true", depends_on=[main.ready()])', "main.ready()"),
    (
        "FD116",
        MAIN + 's = t.role("s", "true", kind="service")\nt.role("a", "true", depends_on=[s.succeeded()])',
        "s.succeeded()",
    ),
    ("FD117", MAIN + 'b = t.role("b", "true")\nt.roles.reverse()\nb.fields["depends_on"] = [main.started()]', "t.role"),
    ("FD118", MAIN + 's = t.role("s", "true", state="memory")\nt.role("a", "true", depends_on=[s])', "s"),
    ("FD119", MAIN + 't.role("a", "true", ready_when="tcp:rpc")', '"tcp:rpc"'),
    ("FD119", MAIN + 't.role("a", "echo ${self.port:rcp}", ports=["rpc"])', '"echo ${self.port:rcp}"'),
    ("FD120", MAIN + 't.role("a", "echo ${rnak}")', '"echo ${rnak}"'),
    ("FD121", MAIN + 't.role("a", "true", restart=Restart(rules=[On("oomm")]))', '"oomm"'),
    ("FD121", MAIN + 't.role("a", "true", restart=Restart(rules=[On(signal="SEVG")]))', '"SEVG"'),
    ("FD122", MAIN + 't.role("a", ["echo", main.addresses("rpc")])', '["echo", main.addresses("rpc")]'),
    ("FD124", MAIN + 't.role("a", "true", restart=Restart(max_restarts=9, within="5s"))', '"5s"'),
    ("FD125", MAIN + 't.role("a", "true", restart=Restart(rules=[On("exit"), On(exit=3)]))', "On(exit=3)"),
    ("FD126", MAIN + 't.role("a", "true", restart=Restart(rules=[On(exit=0)]))', "0"),
    ("FD127", 't = Topology("x")\nt.role("s", "true", kind="service")', '"x"'),
    ("FD127", 't = Topology("x")', "Topology"),
    ("FD128", MAIN + 't.role("a", "true", restart=Restart("domain"))', 'Restart("domain")'),
    ("FD129", MAIN + 't.role("a", "true", gang=True, restart=Restart("replica"))', "True"),
    ("FD130", MAIN + 't.role("a", "true", restart=Restart(then="ignore"))', 'Restart(then="ignore")'),
    ("FD131", MAIN + 't.role("a", "true", kind="servise")', '"servise"'),
    ("FD131", MAIN + 't.role("a", "true", depends_on=[main.started(on_restart="reset")])', '"reset"'),
    ("FD131", MAIN + 't.role("a", "true", ready_when="udp:x")', '"udp:x"'),
    ("FD132", MAIN + 't.role("a", "true", replica=3)', "replica=3"),
    ("FD134", MAIN + 't.role("a", 7)', "7"),
    ("FD134", MAIN + 't.role("a", "true", primary="maybe")', '"maybe"'),
    ("FD134", MAIN + 't.role("a", "true", depends_on=3)', "3"),
    ("FD134", MAIN + 't.role("a", "true", depends_on="main")', '"main"'),
    ("FD134", MAIN + 't.role("a", "true", restart=Restart(rules=3))', "3"),
    ("FD134", MAIN + 't.role("a", "true", restart=Restart(rules=[3, On("exit"), On("oom")]))', "3"),
    ("FD134", 't = Topology("x", nodes=1.5)\nt.role("a", "true")', "1.5"),
    ("FD102", 't = Topology(3)\nt.role("a", "true")', "3"),
    ("FD102", 't = Topology("x", nodes=[Node(3)])\nt.role("a", "true")', "3"),
    ("FD134", MAIN + 't.role("a", "true", env={"A=B": "c"})', '{"A=B": "c"}'),
    ("FD134", MAIN + 't.role("a", "true", env={"KEY": Secret(env=3)})', "3"),
    ("FD135", MAIN + 't.role("a", "true", depends_on=["main"])', '"main"'),
    ("FD136", MAIN + 't.role("a", "true", depends_on=[main.started(), main.succeeded()])', "main.succeeded()"),
    ("FD137", 't = Topology("x", nodes=[Node("n1"), Node("n1")])\nt.role("a", "true")', '"n1"'),
    ("FD138", MAIN + 't.role("a", "true", env={"KEY": Secret()})', "Secret"),
    ("FD138", MAIN + 't.role("a", "true", env={"KEY": Secret(env="A", file="b")})', '"b"'),
    ("FD141", "t = Topologie('x')", "Topologie"),
    ("FD141", "t = Topology('x'", "("),
    ("FD148", 't = Topology("x", nodes=[Node(gpu=4)])\nt.role("a", "true", gpu=1.5)', "1.5"),
    ("FD155", MAIN + 't.role("a", "true", numa="node")', '"node"'),
    ("FD156", 't = Topology("x", heartbeat="500ms", lease="1500ms")\nt.role("a", "true")', '"1500ms"'),
    ("FD156", 't = Topology("x", heartbeat="3s")\nt.role("a", "true")', '"3s"'),
    (
        "FD157",
        MAIN + 't.role("a", "true", workload=Workload(checkpoint_time="10s", checkpoint_blocks="11s"))',
        '"11s"',
    ),
    (
        "FD157",
        MAIN
        + 'w = Workload(checkpoint_every="9s", checkpoint_time="10s", checkpoint_blocks="0s")\nt.role("a", workload=w)',
        '"9s"',
    ),
    ("FD105", MAIN + 't.role("a", "true", workload=Workload(scaling=2))', "2"),
    ("FD105", MAIN + 't.role("a", "true", workload=Workload(startup_spread=1.5))', "1.5"),
    ("FD106", MAIN + 't.role("a", "true", workload=Workload(step_time={1: "2s", 4: "soon"}))', '"soon"'),
    ("FD134", MAIN + 't.role("a", "true", workload=Workload(step_time={"one": "2s"}))', '"2s"'),
    ("FD134", MAIN + 't.role("a", "true", workload=Workload(step_time={}))', "{}"),
    ("FD135", MAIN + 't.role("a", "true", versions="main")', '"main"'),
    ("FD105", MAIN + 't.role("a", "true", versions=main.version(max_staleness=-1))', "-1"),
    ("FD134", MAIN + 't.role("a", "true", versions=main.version(max_staleness="2 steps"))', '"2 steps"'),
    (
        "FD170",
        MAIN + 'x = t.role("x", "true", replicas=2, gang=False)\nt.role("a", "true", versions=x.version())',
        "x.version()",
    ),
    ("FD169", MAIN + 't.role("a", "true", replicas=2, workload=Workload(step_time={1: "2s"}))', '{1: "2s"}'),
    (
        "FD169",
        MAIN + 't.role("a", "true", replicas="1:2", workload=Workload(step_time={2: "2s", 3: "1s"}))',
        '{2: "2s", 3: "1s"}',
    ),
    ("FD169", MAIN + 't.role("a", "true", workload=Workload(step_time={1: "2s"}, scaling=0.5))', "0.5"),
    ("FD301", 't = Topology("x", nodes=[Node(gpu=1)])\nt.role("a", "true", gpu=1, replicas="1x2")', '"1x2"'),
    (
        "FD302",
        MAIN + 's = t.role("s", "true", ports=["p"])\nt.role("a", ["echo", s.addresses("p")], depends_on=[s])',
        '["echo", s.addresses("p")]',
    ),
    ("FD303", MAIN + 't.role("a", "true", env={"KEY": Secret(env="NOBODY_SETS_THIS")})', '"NOBODY_SETS_THIS"'),
    ("FD303", MAIN + 't.role("a", "true", env={"KEY": Secret(file="no-such-file")})', '"no-such-file"'),
    ("FD128", MAIN + f't.role("a", "true", restart={WIDER_DOMAIN})', WIDER_DOMAIN),
    ("FD130", MAIN + f't.role("a", "true", restart={WIDER_IGNORE})', WIDER_IGNORE),
    ("FD102", MAIN + 't.world("Core", main, t.role("a", "true"))', '"Core"'),
    ("FD105", 't = Topology("x", move_after=0)\nt.role("a", "true")', "0"),
    ("FD105", 't = Topology("x", controller_outage=0)\nt.role("a", "true")', "0"),
    ("FD134", 't = Topology("x", cordon_after=2.5)\nt.role("a", "true")', "2.5"),
    ("FD132", 't = Topology("x", cordon_aftr=2)\nt.role("a", "true")', "cordon_aftr=2"),
    ("FD106", MAIN + 't.role("a", "true", start_timeout="soon")', '"soon"'),
    ("FD105", MAIN + 't.role("a", "true", hang_after=0)', "0"),
    ("FD143", MAIN + 't.role("a", "true", restart=Restart("job", then=Restart("role")))', 'Restart("role")'),
    ("FD144", MAIN + 't.world("core", main)', "t.world"),
    ("FD145", MAIN + 'a = t.role("a", "true", depends_on=main)\nt.world("core", main, a)', "t.world"),
    ("FD146", 't = Topology("x", nodes=2)\nt.role("a", "true", where={"zone": "a"})', '{"zone": "a"}'),
    ("FD147", MAIN + 't.role("a", run=lambda: None)', "lambda: None"),
    ("FD149", MAIN + 't.role("a", "true", simulate=print)', "print"),
    ("FD304", MAIN + 't.role("a", "true", hang_after="1s", workload=Workload(steps=9))', '"1s"'),
    ("FD304", MAIN + 't.role("a", "true", hang_after="2s", workload=Workload(startup="0s"))', '"2s"'),
    ("FD304", MAIN + 't.role("a", "true", hang_after="3s", workload=Workload(steps=9))', '"3s"'),
    ("FD105", MAIN + 't.role("a", "true", workload=Workload(step_spread=1e300))', "1e300"),
    ("FD105", MAIN + 't.role("a", "true", workload=Workload(step_spread=101))', "101"),
    ("FD109", MAIN + 't.role("a", "true", preload=["json", "no_such_module"])', '"no_such_module"'),
    ("FD305", MAIN + 't.role("a", "true", preload=["json"])', '["json"]'),
    ("FD307", MAIN + 't.role("a", "true", kind="service", start_timeout="9s")', '"9s"'),
    ("FD307", MAIN + 't.role("a", "true", kind="service", ready_when="call", start_timeout="9s")', '"9s"'),
    ("FD305", MAIN + 't.role("a", "true", warm=True)', "True"),
    ("FD180", MAIN + 't.role("a", "true", start_timeout="5s", workload=Workload(warmup="9s"))', '"5s"'),
    (
        "FD181",
        MAIN + 't.role("a", "true", ready_when="call", ready_timeout="9s", workload=Workload(startup="9s"))',
        '"9s"',
    ),
    ("FD327", MAIN + f't.role("a", "true", replicas=2, hang_after="11m", {HANGS})', '"11m"'),
    ("FD328", MAIN + 't.role("a", "true", start_timeout="8s", workload=Workload(restore_time="9s"))', '"8s"'),
    ("FD329", MAIN + 't.role("a", "true", drain="9s", workload=Workload(checkpoint_time="9s"))', '"9s"'),
    ("FD332", MAIN + f't.role("a", "true", restart=Restart(max_restarts=2, within="9m"), {SLOW})', '"9m"'),
    ("FD333", 't = Topology("x", heartbeat="1s", lease="3s")\nt.role("a", "true")', '"3s"'),
    ("FD334", 't = Topology("x", controller_outage="1s")\nt.role("a", "true")', '"1s"'),
    ("FD335", MAIN + f't.role("a", "true", restart=Restart(max_restarts=2, backoff_reset="4m"), {SLOW})', '"4m"'),
]


@pytest.mark.parametrize(
    ("code", "body", "argument"), CASES, ids=[f"{code}-{i}" for i, (code, _, _) in enumerate(CASES)]
)
def test_each_problem_is_found_at_its_argument(tmp_path: Path, code: str, body: str, argument: str) -> None:
    found = [problem for problem in problems(tmp_path, body) if problem.code == code]
    assert len(found) == 1, [str(problem) for problem in problems(tmp_path, body)]
    assert underlined(found[0]) == argument
    assert found[0].help and found[0].severity == ("warning" if code.startswith("FD3") else "error")


def test_every_code_of_the_source_has_a_test_and_a_section_in_the_docs() -> None:
    codes = {code for source in SOURCES for code in re.findall(r"FD\d{3}", source.read_text())}
    tested = {code for code, _, _ in CASES} | {"FD133", "FD140", "FD142"}  # these have tests of their own
    tested |= {f"FD15{i}" for i in range(5)}  # and so have these: tests/torchrun, tests/components
    tested |= {"FD160", "FD171", "FD306"}  # tests/dsl/test_parallel.py, test_snapshots.py, test_models.py
    tested |= {each.code for each in MISTAKES}
    tested |= {"FD330", "FD331"}  # tests/report/test_plan_faults.py
    tested |= {"FD182", "FD336"}  # tests/engines/test_slurm.py, test_jobset_problems.py
    tested |= {"FD337"}  # tests/dsl/test_limits.py
    documented = set(re.findall(r"^### (FD\d{3})", (PACKAGE / "dsl/problems/errors.md").read_text(), re.M))
    assert codes == tested
    assert documented == codes


TEN_MISTAKES = """
t = Topology("ten", nodes=2 * [Node(cpu=4)], heartbeat="often")
ps = t.role("ps", ["python", "nope.py"], kind="servise", ports=["rpc"])
trainer = t.role(
    "Trainer", "echo ${rnak}",
    replicas="4:2",
    memory="lots",
    depends_on=[ps.ready()],
    restart=Restart("role", max_restarts=3, rules=[
        On("oomm", do="fail"),
        On(exit=0, do="fail"),
    ]),
)
t.role("evaluator", "true", primary=False, grace="10 parsecs")
"""


def test_ten_mistakes_are_reported_in_one_go_each_at_its_place(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    file.write_text(HEAD + TEN_MISTAKES)
    run = [sys.executable, "-m", "flowdist", "check", str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    places = re.findall(r"topology\.py:(\d+):(\d+): error\[(FD\d+)\]", done.stderr)
    assert places == [
        ("3", "56", "FD106"), ("4", "19", "FD109"), ("4", "47", "FD131"), ("6", "5", "FD102"), ("6", "16", "FD120"),
        ("7", "14", "FD103"), ("8", "12", "FD107"), ("9", "17", "FD115"), ("11", "12", "FD121"), ("12", "17", "FD126"),
        ("15", "50", "FD106"),
    ]  # fmt: skip
    assert done.stderr.rstrip().endswith("11 errors in the topology.")


def test_the_form_of_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = problems(tmp_path, MAIN + 't.role(\n    "ps", "true",\n    replicas="4:2",\n)')
    assert found.format() == (
        "topology.py:6:14: error[FD103]: role 'ps': minimum 4 is larger than maximum 2\n"
        "  |\n"
        '  |     replicas="4:2",\n'
        "  |              ^^^^^\n"
        '  = help: write replicas="2:4"'
    )


def test_columns_count_characters_not_bytes(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, MAIN + 't.role("a", "true", env={"ü": "é"}, grace="später")')
    assert underlined(found) == '"später"'


def test_problems_as_json(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(HEAD + MAIN + 't.role("a", "true", grace="x")')
    result = CliRunner().invoke(command, [str(tmp_path / "topology.py"), "--json"])
    content = json.loads(result.stdout)
    assert result.exit_code == 2 and content["kind"] == "problems"
    (problem,) = content["problems"]
    assert problem["code"] == "FD106" and (problem["line"], problem["column"], problem["end_column"]) == (4, 27, 30)


@pytest.mark.parametrize(
    ("options", "code", "help"),
    [
        ({"sets": ["mian.replicas=2"]}, "FD133", 'did you mean "main"?'),
        ({"sets": ["main.replica=2"]}, "FD132", 'did you mean "replicas"?'),
        ({"sets": ["main.restart.max_restart=2"]}, "FD132", 'did you mean "max_restarts"?'),
        ({"sets": ["main=2"]}, "FD133", "write --set main.FIELD=2"),
        ({"params": {"x": "1"}}, "FD133", "parameters need a function"),
        ({"sets": ["main.replicas=4:2"]}, "FD103", 'write replicas="2:4"'),
        ({"nodes": "none"}, "FD104", "write nodes=4"),
        ({"nodes": "4:2"}, "FD103", 'write nodes="2:4"'),
    ],
)
def test_the_command_line_is_checked_like_the_file(
    tmp_path: Path, options: dict[str, object], code: str, help: str
) -> None:
    (found,) = problems(tmp_path, MAIN, **options)
    assert found.code == code and help in found.help


@pytest.mark.parametrize(
    ("body", "target", "message"),
    [
        ("x = 1", "", "has no topology"),
        ('a = Topology("a")\nb = Topology("b")', "", "has several topologies"),
        (MAIN, ":nope", "has no 'nope'"),
        ("def topology() -> Topology: return 3", "", "is not a Topology"),
    ],
)
def test_a_file_without_the_topology_is_refused(tmp_path: Path, body: str, target: str, message: str) -> None:
    file = tmp_path / "topology.py"
    file.write_text(HEAD + body)
    with pytest.raises(TopologyProblems) as caught:
        load_topology(f"{file}{target}")
    assert caught.value.problems[0].code == "FD140" and message in caught.value.problems[0].message


def test_nodes_that_are_not_alike_cannot_be_counted(tmp_path: Path) -> None:
    body = 't = Topology("x", nodes=[Node(cpu=1), Node(cpu=2)])\nt.role("a", "true")'
    (found,) = problems(tmp_path, body, nodes="3")
    assert found.code == "FD104" and found.place.file == "<command line>" and "have different sizes" in found.message


def test_a_script_is_not_executed_to_look_for_a_topology(tmp_path: Path) -> None:
    for body in ("open('trace', 'w')", "from flowdist import worker\nopen('trace', 'w')"):
        (tmp_path / "train.py").write_text(body.replace("trace", str(tmp_path / "trace")))
        with pytest.raises(TopologyProblems) as caught:
            load_topology(str(tmp_path / "train.py"))
        assert "flowdist run" in caught.value.problems[0].help
    assert not (tmp_path / "trace").exists()


def test_a_mistake_about_a_script_points_at_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(TopologyProblems) as caught:
        one_role_graph(str(tmp_path / "nope.py"), replicas="4:2")
    assert {problem.code for problem in caught.value.problems} == {"FD103", "FD109"}
    assert all(problem.place.file == "<command line>" for problem in caught.value.problems)


def test_no_file_at_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyProblems) as caught:
        load_topology()
    assert "no topology file 'topology.py'" in caught.value.problems[0].message


def test_the_users_exception_is_told_with_the_users_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "def topology(n: int = 1) -> Topology:\n    return 1 / (n - 1)\n")
    assert (found.code, found.place.line, found.message) == ("FD141", 3, "ZeroDivisionError: division by zero")
