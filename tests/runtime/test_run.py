"""Real jobs with real kills: they recover as the policy says, and their journals replay."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowdist.cli.inspect.replay import command as replay_command
from flowdist.control.controller import Controller
from flowdist.control.invariants import check_job
from flowdist.control.protocol.events import ReplicaExited
from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.record.journal import FaultLine, Record
from flowdist.report.record.summary import summary_of
from flowdist.sim.simulation import Simulation, with_nodes
from tests.proofs.restart_table import restart_set
from tests.runtime.harness import Job

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

ONCE = """
import os, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    for step in range(10):
        dist.all_reduce(ones)
        ones.fill_(1)
        if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == 5:
            raise ValueError("rank 1 dies once")
    dist.all_reduce(ones)
    print("sum", int(ones), flush=True)
    dist.destroy_process_group()

main()
"""


@needs_torch
def test_a_plain_torchrun_script_recovers_from_a_dying_rank(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    with Job(tmp_path, "once.py", "--replicas", "1x4", "--max-restarts", "2") as job:
        assert job.finish() == 0, job.text
        assert job.text.count("sum 4") == 4 and job.alive() == []
        assert "ValueError: rank 1 dies once" in next(line for line in job.output if "incident 1" in line)
        state = replayed(job)
        assert state["roles"]["trainer"]["generations"] == 2 and state["roles"]["trainer"]["charged"] == 1


def replayed(job: Job) -> dict:  # type: ignore[type-arg]
    """Replay the journal: the effects are the same at every event, and the summary follows from it."""
    header, lines = job.journal()
    controller = Controller(header.graph, header.known_nodes)
    for line in lines:
        if isinstance(line, Record):
            assert tuple(controller.handle(line.event, line.t_ns)) == line.effects, line
            check_job(controller.state)
    return summary_of(controller.state, lines)


# Three roles that only wait for a word: which one, they are told by a FIFO each that the test writes to.
WAIT = "import os, signal; print('up', flush=True); signal.pause()"
SERVER = """
import socket
from flowdist import worker
server = socket.create_server(("127.0.0.1", worker.port("rpc")))
print("serving at", worker.port("rpc"), flush=True)
while True:
    server.accept()[0].close()
"""
TRAINER = """
import os, sys
from flowdist import worker
generation = worker.info().generation
for step in range(1, 4):
    worker.progress(step)
print("generation", generation, "of", os.environ["WORLD_SIZE"], "from", worker.latest(), flush=True)
if worker.info().rank == 0:
    open(f"checkpoint-{generation}", "w").close()
    assert worker.commit(f"checkpoint-{generation}", step=generation)
if generation == LAST:
    print("peers", worker.peers("ps", "rpc"), flush=True)
    sys.exit(0)
open("never", "r").read()
"""

TOPOLOGY = """
from flowdist import Node, Restart, Topology, Workload
t = Topology("trio", nodes=2 * [Node(cpu=3)])
ps = t.role("ps", ["python", "ps.py"], kind="service", cpu=0.5, ports=["rpc"], ready_when="tcp:rpc", state="checkpoint",
            restart=Restart("replica", max_restarts=3))
trainer = t.role("trainer", ["python", "trainer.py"], replicas="1:2", cpu=2, cooldown="0s",
                 depends_on=[ps.ready(on_restart="restart")], restart=Restart("role", max_restarts=3, backoff="0s"),
                 workload=Workload(steps=100, startup="1s"))
t.role("evaluator", ["python", "evaluator.py"], cpu=0.5, primary=False, depends_on=[trainer.started()],
       restart=Restart("replica", max_restarts=3), workload=Workload(steps=100000))
"""


def trio(folder: Path, last: int) -> Path:
    """The trainers end in their `last` generation and wait for ever in those before."""
    os.mkfifo(folder / "never")
    (folder / "ps.py").write_text(SERVER)
    (folder / "trainer.py").write_text(TRAINER.replace("LAST", str(last)))
    (folder / "evaluator.py").write_text(WAIT)
    (folder / "topology.py").write_text(TOPOLOGY)
    return folder / "topology.py"


FAULTS = ["ps/0@generation=trainer,1+300ms", "trainer/1@generation=trainer,2+300ms:exit=7",
          "evaluator/0@generation=trainer,3+300ms", "node1@start=evaluator,2+300ms/4s"]  # fmt: skip


def decisions(summary: dict) -> dict:  # type: ignore[type-arg]
    """Return restarts, reasons and charges: they must be the same in simulation and on real processes.

    Whether a first step comes before the next fault is a matter of the workers' pace, and no decision.
    """
    return {
        "incidents": [
            (
                i["kind"],
                i["root"],
                sorted(i["restarted"]),
                i["charged_to"],
                i["result"].replace("recovered", "re-formed"),
            )
            for i in summary["incidents"]
        ],
        "roles": {
            name: {key: role[key] for key in ("outcome", "charged", "generations", "replicas")}
            for name, role in summary["roles"].items()
        },
    }


@pytest.mark.slow
def test_the_same_faults_lead_to_the_same_decisions_in_simulation_and_for_real(tmp_path: Path) -> None:
    topology = trio(tmp_path, last=5)
    options = [option for fault in FAULTS for option in ("--fail", fault)]
    with Job(tmp_path, str(topology), *options) as job:
        assert job.finish() == 0, job.text
        assert job.alive() == []
        real = replayed(job)
        sizes = world_sizes(job.journal()[1])
    loaded = load_topology(str(topology)).graph
    result = Simulation(with_nodes(loaded), Plan(tuple(parse_fault(text) for text in FAULTS))).run()
    assert result.violation is None and result.unfired == []
    assert decisions(summary_of(result.job, result.lines)) == decisions(real)
    assert world_sizes(result.lines) == sizes
    assert [i["kind"] for i in real["incidents"]] == ["signal", "exit", "signal", "node_lost", "joined"]
    # the static table is the oracle for both
    for incident, (role, cause) in zip(real["incidents"], [("ps", "failure"), ("trainer", "failure")], strict=False):
        assert {name.partition("/")[0] for name in incident["restarted"]} == set(restart_set(loaded, role, cause))


def world_sizes(lines) -> list[int]:  # type: ignore[no-untyped-def]
    sizes = {}
    for line in lines:
        for effect in line.effects if isinstance(line, Record) else ():
            if type(effect).__name__ == "StartReplica" and effect.world == "trainer":
                sizes[effect.generation] = effect.group_world_size
    return list(sizes.values())


def test_the_command_replays_the_journal_of_a_run(tmp_path: Path) -> None:
    from click.testing import CliRunner

    with Job(tmp_path, str(trio(tmp_path, last=2)), "--fail", "ps/0@generation=trainer,1+200ms") as job:
        assert job.finish() == 0, job.text
        result = CliRunner().invoke(replay_command, [str(job.run_dir)])
        assert result.exit_code == 0 and "the same effects at each" in result.output
        journal = job.run_dir / "journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        assert any(isinstance(line, FaultLine) for line in job.journal()[1])
        plain = [re.sub(rb',"check":"[0-9a-f]{8}"', b"", line) for line in lines]  # else it is a damaged journal
        changed = [line.replace(b'"exit_code":0,"signal":"KILL"', b'"exit_code":0,"signal":"SEGV"') for line in plain]
        (tmp_path / "changed.jsonl").write_bytes(b"".join(changed))
        result = CliRunner().invoke(replay_command, [str(tmp_path / "changed.jsonl")])
        assert result.exit_code == 3 and "the first difference is at event" in result.output
        (tmp_path / "cut.jsonl").write_bytes(b"".join(lines)[:-20])
        assert CliRunner().invoke(replay_command, [str(tmp_path / "cut.jsonl")]).exit_code == 0


def test_a_restarted_server_keeps_its_port_and_trainers_resume_from_their_commit(tmp_path: Path) -> None:
    with Job(tmp_path, str(trio(tmp_path, last=2)), "--fail", "ps/0@checkpoint=trainer,1+100ms") as job:
        assert job.finish() == 0, job.text
        ports = {line.rpartition(" ")[2] for line in job.output if "serving at" in line}
        assert len(ports) == 1 and sum("serving at" in line for line in job.output) == 2
        assert any(f"generation 2 of 2 from {tmp_path}/checkpoint-1" in line for line in job.output), job.text
        assert any(f"peers ['127.0.0.1:{next(iter(ports))}']" in line for line in job.output)
        pointer = json.loads((job.run_dir / "checkpoints/trainer/latest.json").read_text())
        assert pointer == {"path": f"{tmp_path}/checkpoint-2", "step": 2, "generation": 2}


@pytest.mark.slow
def test_an_agents_share_of_a_lost_node_comes_back_after_its_duration(tmp_path: Path) -> None:
    with Job(tmp_path, str(trio(tmp_path, last=3)), "--fail", "node1@generation=trainer,1+200ms/4s") as job:
        assert job.finish() == 0, job.text
        assert world_sizes(job.journal()[1]) == [2, 1, 2]
        assert "fault node1@generation=trainer,1+200ms/4s hits node1" in job.text


def test_a_used_up_budget_shows_the_root_cause_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def deep():\n    raise ValueError('bad shape')\ndeep()\n")
    with Job(tmp_path, "bad.py", "--replicas", "1", "--max-restarts", "1") as job:
        assert job.finish() == 1
        assert "trainer/0 failed on node0: exit code 1: ValueError: bad shape" in job.text
        assert "role trainer has used up its budget of 1 restart" in job.text
        after = job.text[job.text.index("Root cause") :]
        assert "in deep" in after and "ValueError: bad shape" in after
        summary = json.loads((job.run_dir / "summary.json").read_text())
        assert summary["outcome"] == "failed" and len(summary["incidents"]) == 1


def test_the_reason_of_a_failed_job_has_the_same_time_at_once_and_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('bad shape')\n")
    with Job(tmp_path, "bad.py") as job:
        assert job.finish() == 1
    assert "flowdist    0.00s | run " in job.output[0]
    told = [line for line in job.output if "exit code 1: ValueError: bad shape" in line]
    assert len(told) == 2 and "s | error: the job fails: trainer/0 failed on node0: " in told[0]
    assert told[1].startswith("FAILED after ")
    records = [line for line in job.journal()[1] if isinstance(line, Record)]
    failed_ns = next(record.t_ns for record in records if isinstance(record.event, ReplicaExited))
    shown_s = float(told[0].removeprefix("flowdist").partition("s |")[0])
    assert failed_ns / 1e9 - 0.01 < shown_s  # to hundredths, and told when it has happened


# Rank 0 raises, and is held up as it ends; rank 1 fails of that at once.
HELD_UP = """
import atexit, json, os, pathlib, signal, sys
mine = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"])

def fail(text):  # as @record does
    whole = mine.with_suffix(".new")
    whole.write_text(json.dumps({"message": text}))
    os.utime(whole, 2 * (int(os.environ["RANK"]),))  # the times of files are coarse
    whole.rename(mine)
    raise SystemExit(2)

if os.environ["RANK"] == "0":
    atexit.register(signal.pause)
    fail("ValueError: bad shape")
while not (mine.parent.parent / "0" / mine.name).exists():
    pass
fail("RuntimeError: Connection closed by peer")
"""


def test_the_worker_that_raised_first_is_the_cause_though_its_peer_ended_earlier(tmp_path: Path) -> None:
    (tmp_path / "held_up.py").write_text(HELD_UP)
    with Job(tmp_path, "held_up.py", "--replicas", "1x2") as job:
        assert job.finish() == 1
        assert "trainer/0 failed on node0: exit code 2: ValueError: bad shape" in job.text, job.text
        assert job.text.count("closed by peer") == 0 and job.alive() == []


def test_a_command_that_does_not_exist_is_a_start_failure(tmp_path: Path) -> None:
    (tmp_path / "no.sh").write_text("#!/nowhere/sh\n")
    (tmp_path / "no.sh").chmod(0o755)
    (tmp_path / "topology.py").write_text(
        "from flowdist import Topology\nt = Topology('x')\nt.role('a', ['./no.sh'])\n"
    )
    with Job(tmp_path) as job:
        assert job.finish() == 1
        assert "its command could not be started: ./no.sh: No such file or directory" in job.text


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('noise')")
    run = [sys.executable, "-m", "flowdist", "run", "x.py", "--json"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert (content["kind"], content["outcome"]) == ("run", "succeeded") and "[trainer/0] noise" in done.stderr


def test_a_closed_output_pipe_does_not_stop_the_job(tmp_path: Path) -> None:
    code = "import time; [(print(i, flush=True), time.sleep(0.02)) for i in range(50)]"  # the work
    (tmp_path / "topology.py").write_text(
        f"from flowdist import Topology\nt = Topology('piped')\nt.role('a', ['python', '-c', {code!r}])\n"
    )
    with Job(tmp_path) as job:
        job.until("[a/0] 3")
        assert job.process.stdout is not None
        job.process.stdout.close()
        assert job.process.wait() == 0
        assert json.loads((job.run_dir / "summary.json").read_text())["outcome"] == "succeeded"
        assert (job.run_dir / "a/0/attempt_1/0/stdout.log").read_text().endswith("49\n")


def test_a_fault_that_never_fires_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("pass")
    faults = ("--fail", "trainer/0@1h", "--fail", "node0@step=trainer,9", "--fail", "trainer/0@start=trainer,2")
    with Job(tmp_path, "x.py", *faults) as job:
        assert job.finish() == 0
        assert json.loads((job.run_dir / "summary.json").read_text())["unfired"] == list(faults[1::2])
    warnings = re.findall(r"fault (\S+) never fired: (.*)", job.text)
    assert warnings[0][0] == "trainer/0@1h" and re.fullmatch(r"the job was over after [\d.]+m?s", warnings[0][1])
    assert warnings[1:] == [
        ("node0@step=trainer,9", "trainer came to step 0"),
        ("trainer/0@start=trainer,2", "trainer had 1 generation"),
    ]


def test_more_gpus_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "topology.py").write_text(
        "from flowdist import Node, Topology\nt = Topology('x', nodes=[Node(gpu=2)])\nt.role('a', 'true', gpu=1)\n"
    )
    with Job(tmp_path, env={"CUDA_VISIBLE_DEVICES": "3"}) as job:
        assert job.finish() == 2 and "the nodes have 2 gpu, this machine has 1: GPUs are never shared" in job.text
