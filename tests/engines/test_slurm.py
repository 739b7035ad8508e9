"""Slurm as an engine: options, scripts, states, and what it cannot honour, each at its place in the topology."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.topologies import check
from flowdist.cli.run.run import command as run
from flowdist.control.fleet.values import Launch, Seen, Size
from flowdist.control.protocol.events import NodeLeft, NodePreempted
from flowdist.engines.interface import EngineFailed
from flowdist.engines.pools import on_pools, pools_of
from flowdist.engines.slurm.commands import clean, is_drained, seen
from flowdist.engines.slurm.engine import Slurm
from flowdist.engines.slurm.options import read_options
from flowdist.engines.slurm.script import job_name
from flowdist.errors import FlowdistError
from flowdist.graph import NODE_POOL, SECOND, Cluster, NodeSpec, Resources, RoleGraph, RoleSpec
from tests.control.harness import Talk
from tests.engines.fakes import slurm as fake_slurm

HEAD = "from flowdist import Node, Secret, Topology\n"


def topology(folder: Path, text: str) -> None:
    (folder / "topology.py").write_text(HEAD + text)


def invoke(verb: object, folder: Path, *words: str) -> Result:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(verb, [*words])  # type: ignore[arg-type]
    finally:
        os.chdir(before)


def launch(**fields: object) -> Launch:
    base = {"member": "m1", "title": "job-m1", "pool": "", "size": Size(2), "command": ("flowdist", "join", "h:1")}
    base["logs"] = "/logs"
    return Launch(**{**base, **fields})  # type: ignore[arg-type]


def script(*words: str, **fields: object) -> str:
    return Slurm(read_options(words, ["ps"]), "/work").script(launch(**fields))


def test_all_wrong_options_are_reported_at_once() -> None:
    words = ["partitin=a", "tainer.mem=1GiB", "mem=many", "trainer.requeue=yes", "cpus", "nodes=3", "cpus=0", "time="]
    with pytest.raises(FlowdistError) as caught:
        read_options(words, ["trainer"])
    message = caught.value.message
    assert [f"-o {word}: " in message for word in words] == [True] * len(words)
    assert "did you mean 'partition'?" in message and "did you mean 'trainer'?" in message


def test_options_of_a_role_win_over_those_of_all_members() -> None:
    options = read_options(["partition=gpu", "ps.partition=cpu", "account=x", "requeue=yes", "notice=2m"], ["ps"])
    assert options.of_pool("ps") == {"partition": "cpu", "account": "x"}
    assert (options.requeue, options.notice_ns, options.controller) == (True, 120_000_000_000, "here")


def test_a_script_asks_for_one_node_and_becomes_the_command() -> None:
    text = script(
        "partition=gpu", "time=1:00:00", "constraint=a&b", "exclude=h9", "exclusive=yes", avoid=("h1", "h2"),
        size=Size(4, 2, 3 << 30), command=("flowdist", "join", "a b"),
    )  # fmt: skip
    assert text.splitlines() == [
        "#!/bin/sh", "#SBATCH --job-name=job-m1", "#SBATCH --nodes=1", "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=4", "#SBATCH --gres=gpu:2", "#SBATCH --mem=3072M", "#SBATCH --partition=gpu",
        '#SBATCH --constraint="a&b"', "#SBATCH --time=1:00:00", "#SBATCH --exclusive", "#SBATCH --exclude=h9,h1,h2",
        "#SBATCH --signal=B:USR1@60", "#SBATCH --no-requeue", "#SBATCH --chdir=/work",
        "#SBATCH --output=/logs/%x-%j.out", "#SBATCH --open-mode=append", "exec flowdist join 'a b'",
    ]  # fmt: skip


def test_mail_licenses_and_options_that_only_sbatch_knows_reach_it() -> None:
    words = ["mail-user=ann@x.org", "mail-type=END,FAIL", "licenses=matlab:2", "exclusive=user"]
    raw = ["sbatch=--wckey=night", "sbatch=--comment=two words", "sbatch=--contiguous"]
    lines = script(*words, *raw).splitlines()
    assert [line for line in lines if re.search("mail|licenses|exclusive", line)] == [
        "#SBATCH --licenses=matlab:2", "#SBATCH --mail-type=END,FAIL", "#SBATCH --mail-user=ann@x.org",
        "#SBATCH --exclusive=user",
    ]  # fmt: skip
    assert lines[-4:-1] == ["#SBATCH --wckey=night", '#SBATCH --comment="two words"', "#SBATCH --contiguous"]
    role = script("sbatch=--wckey=night", "ps.sbatch=--begin=now+1hour", pool="ps")
    assert "--begin=now+1hour" in role and "wckey" not in role


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("--nodes=2", "sets --nodes: flowdist sets it itself"),
        ("--nod=2", "sets --nodes"),  # sbatch takes any beginning that no other option shares
        ("--partition=gpu", "sets --partition: write -o partition="),
        ("--signal=USR2@5", "sets --signal: write -o notice="),
        ("--array=1-9", "sets --array: flowdist needs sbatch to submit one job"),
        ("-A nlp", "is no option of sbatch in its long form"),
        ('--comment="x"', "is no option of sbatch in its long form"),
        ("--comment=a\nb", "is no option of sbatch in its long form"),
    ],
)
def test_a_raw_option_that_flowdist_sets_itself_is_refused_with_what_to_write(raw: str, words: str) -> None:
    with pytest.raises(FlowdistError) as caught:
        read_options([f"sbatch={raw}"], [])
    assert words in caught.value.message


def test_set_up_lines_run_in_a_login_shell_and_the_first_that_fails_ends_the_member() -> None:
    text = script(
        "setup=colour=red; export colour", "setup=size() { false; true; }; size", command=("printenv", "colour")
    )
    assert text.startswith("#!/bin/bash -l\n#SBATCH ")
    done = subprocess.run(["bash", "-l"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "red\n"), done.stderr
    failing = script("setup=true; (exit 7)", "setup=echo never", command=("echo", "never"))
    done = subprocess.run(["bash", "-l"], input=failing, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    assert "flowdist: a set-up line ended with exit code 7: ( exit 7 )" in done.stderr


def test_devices_that_are_no_gpus_leave_the_gpus_of_the_replicas_asked_for() -> None:
    asked = {given: re.findall("--gres=(.*)", script(f"gres={given}", size=Size(1, 2)))
             for given in ("nvme:1", "gpu:a100:4", "nvme:1,gpu:4", "none")}  # fmt: skip
    assert asked == {given: [given + (",gpu:2" if given == "nvme:1" else "")] for given in asked}


def test_the_shell_accepts_every_script(tmp_path: Path) -> None:
    text = script("constraint=a|b", command=("echo", "it's", "$HOME", "`id`", ";", "#"))
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "it's $HOME `id` ; #\n"


def test_names_of_jobs_have_no_characters_that_squeue_would_split() -> None:
    assert job_name("my job|x", "", "m3") == "my-job-x-m3"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("PENDING", "", "Resources"), Seen("pending", "", "", "PENDING (Resources)")),
        (("RUNNING", "h1", "None"), Seen("running", "h1", "", "RUNNING")),
        (("COMPLETING", "h1", "None"), Seen("running", "h1", "", "COMPLETING", is_ending=True)),
        (("TIMEOUT", "h1", "TimeLimit"), Seen("ended", "h1", "time limit", "TIMEOUT (TimeLimit)")),
        (("NODE_FAIL", "(null)", "None"), Seen("ended", "", "node failed", "NODE_FAIL")),
        (("OUT_OF_MEMORY", "h1", "None"), Seen("ended", "h1", "failed", "OUT_OF_MEMORY")),
        (
            ("PENDING", "", "launch failed requeued held"),
            Seen("ended", "", "node failed", "PENDING (launch failed requeued held)"),
        ),
    ],
)
def test_states_of_slurm_mean_phases_and_causes(line: tuple[str, str, str], expected: Seen) -> None:
    assert seen(*line) == expected


@pytest.mark.parametrize(
    ("state", "is_so"), [("draining", True), ("drained*", True), ("idle", False), ("down*", False), ("mixed", False)]
)
def test_a_node_that_slurm_drains_is_to_be_emptied(state: str, is_so: bool) -> None:
    assert is_drained(state) == is_so


def test_neither_the_token_nor_an_outer_job_travels_in_the_environment() -> None:
    env = {"FLOWDIST_TOKEN": "x", "FLOWDIST_HOST_SECRET": "y", "SLURM_JOB_ID": "7", "SLURM_CONF": "c", "PATH": "p"}
    assert clean(env) == {"SLURM_CONF": "c", "PATH": "p"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_slurm.install(tmp_path / "fake", nodes=1)
    monkeypatch.setenv("PATH", f"{tmp_path / 'fake'}:{os.environ['PATH']}")
    monkeypatch.setenv("FLOWDIST_TOKEN", "not-for-slurm")
    return tmp_path / "fake"


def test_what_slurm_says_when_it_refuses_a_job_reaches_the_user(fake: Path, tmp_path: Path) -> None:
    engine = Slurm(read_options(["partition=closed"], []), str(tmp_path))
    with pytest.raises(EngineFailed, match=r"sbatch ended with exit code 1: .*invalid partition specified: closed"):
        engine.submit(launch())
    (fake / "away").touch()
    with pytest.raises(EngineFailed, match="Unable to contact slurm controller"):
        engine.observe(["1"])


def test_excluded_hosts_drained_nodes_and_the_environment_of_a_job(fake: Path, tmp_path: Path) -> None:
    engine = Slurm(read_options([], []), str(tmp_path))
    waits = engine.submit(launch(command=("true",), avoid=("h1",), logs=str(tmp_path)))
    runs = engine.submit(launch(command=("sleep", "60"), logs=str(tmp_path)))
    (fake / "nodes").write_text("h1 draining\n")
    assert engine.observe([waits, runs]) == {
        waits: Seen("pending", "", "", "PENDING (Resources)"),
        runs: Seen("running", "h1", "", "RUNNING", is_host_drained=True),
    }
    job = json.loads((fake / "jobs" / f"{runs}.json").read_text())
    assert "FLOWDIST_TOKEN" not in job["env"] and "not-for-slurm" not in job["script"]
    engine.cancel(waits), engine.cancel(runs)
    while engine.observe([runs])[runs].phase != "ended":
        pass


def test_members_run_on_the_nodes_that_are_listed_and_on_no_other(fake: Path, tmp_path: Path) -> None:
    (fake / "nodes").write_text("".join(f"h{number} idle\n" for number in range(1, 5)))
    engine = Slurm(read_options(["nodelist=h2,h3"], []), str(tmp_path))
    assert "#SBATCH --exclude=h1,h4\n" in engine.script(launch())
    assert "#SBATCH --exclude=h1,h4,h3\n" in engine.script(launch(avoid=("h3", "h4")))
    unknown = Slurm(read_options(["nodelist=h2,h9"], []), str(tmp_path))
    with pytest.raises(EngineFailed, match="Slurm has no node h9"):
        unknown.submit(launch())


def test_members_are_as_large_as_their_share_of_all_replicas() -> None:
    roles = (
        RoleSpec("ps", ("true",), max_replicas=2, resources=Resources(cpu=1.5, memory=1 << 30)),
        RoleSpec("trainer", ("true",), max_replicas=8, resources=Resources(cpu=2, gpu=2)),
    )
    graph = RoleGraph("x", roles, cluster=Cluster(tuple(NodeSpec(f"node{i}") for i in range(4)), min_nodes=2))
    (pool,) = pools_of(graph, {}, {})
    assert (pool.min_members, pool.max_members, pool.size) == (2, 4, Size(6, 4, 1 << 30))
    shared, own = pools_of(graph, {"ps": {"mem": "4GiB", "nodes": "1:2"}}, {"cpus": "3"})
    assert (shared.roles, shared.size) == (("trainer",), Size(3, 4, 0))
    assert (own.name, own.min_members, own.max_members, own.size) == ("ps", 1, 2, Size(3, 0, 4 << 30))
    placed = on_pools(graph, [shared, own])
    assert placed.cluster.nodes == () and placed.cluster.min_nodes == 3
    assert [role.placement.where for role in placed.roles] == [((NODE_POOL, "ps"),), ((NODE_POOL, "*"),)]


def test_members_that_end_together_at_one_time_limit_may_wait_in_the_queue_for_days() -> None:
    trainer = RoleSpec("trainer", ("true",), min_replicas=2, max_replicas=2, gang=True)
    declared = RoleGraph("x", (trainer,), cluster=Cluster((NodeSpec("node0"), NodeSpec("node1")), given=True))
    talk = Talk(on_pools(declared, pools_of(declared, {}, {})))
    talk.wait(3 * 3600)  # the queue is long at the start, too
    talk.join("h1", "h2")
    for name in ("h1", "h2"):
        talk.tell(NodePreempted(name, 60 * SECOND))
    for name in ("h1", "h2"):
        talk.tell(NodeLeft(name))
    talk.wait(3 * 3600)
    talk.join("h3", "h4")
    assert talk.job.outcome is None and talk.job.roles["trainer"].charges == []
    assert [talk.replica(f"trainer/{index}").phase for index in (0, 1)] == ["running", "running"]
    impatient = msgspec.structs.replace(declared, roles=(msgspec.structs.replace(trainer, pending_timeout_ns=SECOND),))
    assert on_pools(impatient, pools_of(impatient, {}, {})).roles[0].pending_timeout_ns == SECOND


@pytest.mark.parametrize(("cpus", "replicas", "members"), [((0.1, 2.7, 0.2), 1, 3), ((0.07,), 100, 7)])
def test_members_ask_for_no_core_that_only_a_rounding_error_wants(cpus, replicas, members) -> None:
    """As floats, 0.1 + 2.7 + 0.2 is more than 3 before Python 3.12, and 100 * 0.07 is more than 7 in every version."""
    roles = tuple(RoleSpec(f"r{cpu}", ("true",), max_replicas=replicas, resources=Resources(cpu)) for cpu in cpus)
    (pool,) = pools_of(RoleGraph("x", roles, cluster=Cluster((NodeSpec("node0"),))), {}, {})
    assert pool.size.cpu == members


def test_check_names_all_that_slurm_cannot_honour_with_its_place(tmp_path: Path) -> None:
    topology(
        tmp_path,
        """
t = Topology("x", nodes=[Node(labels={"disk": "ssd"})])
a = t.role("a", "true", where={"disk": "ssd"}, grace="2m", cpu=6)
t.role("b", "true", drain="10m", env={"KEY": Secret(env="B_KEY")}, state="checkpoint", near=[a])
""",
    )
    done = invoke(check, tmp_path, "--on", "slurm", "-o", "cpus=4", "-o", "b.partition=x", "--json")
    assert done.exit_code == 2
    problems = json.loads(done.stdout)["problems"]
    found = [(each["code"], each["line"], each["severity"]) for each in problems if each["code"] in ("FD182", "FD336")]
    assert sorted(found) == [
        ("FD182", 4, "error"), ("FD182", 4, "error"), ("FD182", 4, "error"), ("FD182", 5, "error"),
        ("FD336", 3, "warning"), ("FD336", 4, "warning"), ("FD336", 5, "warning"), ("FD336", 5, "warning"),
    ]  # fmt: skip
    words = " ".join(each["message"] for each in problems)
    assert (
        "beside 'a'" in words
        and "KillWait" in words
        and "no label disk=ssd" in words
        and "-o cpus=4" in words
        and "B_KEY" in words
    )


def test_check_without_a_number_of_members_says_how_to_give_one(tmp_path: Path) -> None:
    topology(tmp_path, 't = Topology("x")\nt.role("a", "true")\n')
    done = invoke(check, tmp_path, "--on", "slurm")
    assert done.exit_code == 2 and "write --nodes 2:8" in done.stderr
    assert invoke(check, tmp_path, "--on", "slurm", "--nodes", "2:8").exit_code == 0


def test_dryrun_prints_a_script_for_each_pool_and_submits_nothing(tmp_path: Path) -> None:
    topology(tmp_path, 't = Topology("x", nodes="2:4")\nt.role("a", "true")\nt.role("b", "true", replicas=3)\n')
    done = invoke(run, tmp_path, "--on", "slurm", "--dryrun", "-o", "partition=p", "-o", "b.partition=q")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("#!/bin/sh") == 2
    assert re.findall(r"--partition=(\w)", done.stdout) == ["p", "q"]
    assert "--token-file" in done.stdout and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("nodes", ["", ", nodes=2", ", nodes=2 * [Node(gpu=8)]"], ids=["none", "a number", "sizes"])
def test_members_are_as_large_as_their_replicas_whatever_the_nodes_of_the_topology_are(tmp_path: Path, nodes) -> None:
    topology(tmp_path, f't = Topology("x"{nodes})\nt.role("a", "true", replicas="2:8", gpu=8, cpu=64)\n')
    for verb in (check, run):
        done = invoke(verb, tmp_path, "--on", "slurm", "--nodes", "2:8", *(["--dryrun"] if verb is run else []))
        assert done.exit_code == 0, done.output
    assert "--gres=gpu:8\n" in done.stdout and "--cpus-per-task=64\n" in done.stdout


def test_replicas_that_need_members_of_their_own_need_as_many_of_them(tmp_path: Path) -> None:
    topology(tmp_path, 't = Topology("x")\nt.role("a", "true", replicas=3, gpu=8, apart=True)\n')
    done = invoke(check, tmp_path, "--on", "slurm", "--nodes", "2")
    assert done.exit_code == 2 and "FD146" in done.stderr, done.output
    assert invoke(check, tmp_path, "--on", "slurm", "--nodes", "3").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "slrum"], "did you mean 'slurm'?"),
        (["-o", "partition=x"], "no engine reads it"),
        (["--dryrun"], "--dryrun goes with --on"),
        (["--on", "local", "--json"], "--on does not go with --json"),
        (["--on", "slurm", "--resume", "x", "-o", "partition=y"], "takes the engine's options of that run"),
        (["--on", "slurm", "-o", "controller=there"], "'there' is none of here, job"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    topology(tmp_path, 't = Topology("x", nodes=1)\nt.role("a", "true")\n')
    done = invoke(run, tmp_path, *words)
    assert done.exit_code == 2 and message in done.output
