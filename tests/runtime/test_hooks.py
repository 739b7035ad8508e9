"""Hooks: called for each incident and for the end, one at a time, without delaying the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from flowdist.runtime.hooks.hook_runner import HookConfig
from tests.runtime.harness import Deaths, Job, children

pytestmark = pytest.mark.real

TOPOLOGY = """
from flowdist import Restart, Topology
t = Topology("x", on_incident=HOOK)
t.role("a", ["python", "worker.py"], restart=Restart("role", max_restarts=1, backoff=0))
"""
ONCE = 'import os, sys\nif os.environ["FLOWDIST_ATTEMPT"] == "1":\n    sys.exit(7)\n'


def job(folder: Path, hook: str, worker: str = ONCE, *arguments: str) -> Job:
    (folder / "topology.py").write_text(TOPOLOGY.replace("HOOK", hook))
    (folder / "worker.py").write_text(worker)
    return Job(folder, *arguments)


def told(run: Job) -> list[dict]:  # type: ignore[type-arg]
    """Return the calls of the hook, with the end last: it overtakes calls that wait."""
    lines = (run.run_dir / "hooks.log").read_text().splitlines()
    return sorted(
        (json.loads(line) for line in lines if line.startswith("{")), key=lambda call: call["event"] == "job_ended"
    )


def test_a_hook_is_called_for_each_incident_and_for_the_end(tmp_path: Path) -> None:
    with job(tmp_path, '["cat"]') as run:
        assert run.finish() == 0, run.text
        incident, end = told(run)
        assert (incident["event"], end["event"]) == ("incident_closed", "job_ended")
        summary = json.loads((run.run_dir / "summary.json").read_text())["incidents"][0]
        same = {name: incident[name] for name in ("kind", "root", "reason", "restarted", "charged_to", "result", "t_s")}
        assert same == {name: summary[name] for name in same} and incident["duration_s"] == summary["took_s"]
        assert (incident["incident"], incident["kind"], incident["worlds"]) == (1, "exit", ["a"])
        assert (end["outcome"], end["incidents"], end["job"]) == ("succeeded", 1, "x")
        assert end["run_dir"] == str(run.run_dir) and run.alive() == []


def test_a_failure_without_an_incident_calls_the_hook_for_the_end(tmp_path: Path) -> None:
    with job(tmp_path, '"cat"', "raise SystemExit(7)", "--set", "a.restart=none") as run:
        assert run.finish() == 1
        *incidents, end = told(run)
        assert (end["event"], end["outcome"]) == ("job_ended", "failed") and "exit code 7" in end["reason"]
        assert len(incidents) == len(json.loads((run.run_dir / "summary.json").read_text())["incidents"])


def test_a_resumed_run_does_not_call_the_hook_for_old_incidents(tmp_path: Path) -> None:
    """The hook was called for the old incident before the kill; the kill itself is a new incident."""
    worker = (
        "import os, signal, sys\n"
        "attempt = int(os.environ['FLOWDIST_ATTEMPT'])\n"
        "print(f'attempt {attempt}', flush=True)\n"
        "if attempt == 1:\n    sys.exit(7)\n"
        "if attempt == 2:\n    signal.pause()\n"
    )
    with job(tmp_path, '"cat"', worker) as run:
        run.until("re-formed after")
        with Deaths(run.alive()) as deaths:
            run.process.kill()
            assert deaths.survivors() == []
    with Job(tmp_path, "--resume", "latest") as again:
        assert again.finish() == 0
        incidents = [line["incident"] for line in told(again) if line["event"] == "incident_closed"]
        assert incidents in ([1, 2], [2])  # the first hook may have been killed with its run
        assert told(again)[-1]["event"] == "job_ended"


def test_a_hook_runs_beside_the_topology_with_the_macros_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "notify.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:])\n")
    hook = '["python", "notify.py", "${run_id}", "${checkpoint_dir}"]'
    with job(tmp_path, hook) as run:
        assert run.finish() == 0
        wanted = f"{tmp_path} ['{run.run_dir.name}', '{run.run_dir}/checkpoints']"
        assert (run.run_dir / "hooks.log").read_text().count(wanted) == 2


@pytest.mark.parametrize("hook", ['["false"]', '["./no.sh"]'])
def test_a_hook_that_fails_or_cannot_start_does_not_fail_the_job(tmp_path: Path, hook: str) -> None:
    (tmp_path / "no.sh").write_text("#!/nowhere/sh\n")
    (tmp_path / "no.sh").chmod(0o755)
    with job(tmp_path, hook) as run:
        assert run.finish() == 0
        log = (run.run_dir / "hooks.log").read_text()
        how = "exit code 1" if "false" in hook else "./no.sh: No such file or directory"
        assert f"--- incident 1: {how}" in log and f"--- end of the job: {how}" in log


def test_without_a_hook_there_is_no_runner_and_no_log(tmp_path: Path) -> None:
    with job(tmp_path, "None") as run:
        assert run.finish() == 0 and not (run.run_dir / "hooks.log").exists()


def test_the_job_goes_on_while_a_hook_hangs_and_ctrl_c_does_not_wait_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with job(tmp_path, '["cat", "never"]') as run:
        run.until("the job has succeeded")
        runner = run.named("flowdist.runtime.hooks.hook_runner")[0]  # a hook that is being started has its name, too
        with Deaths([runner, *children(runner)]) as deaths:
            run.process.send_signal(signal.SIGINT)
            assert run.finish() == 0
            assert deaths.survivors() == [] and run.alive() == []


def test_the_end_of_a_node_leaves_the_hooks_alone(tmp_path: Path) -> None:
    with job(tmp_path, '"cat"', "import signal\nprint('hello', flush=True)\nsignal.pause()") as run:
        run.until("hello")
        os.kill(run.named("flowdist.runtime.agent.guardian")[0], signal.SIGKILL)  # the supervisor kills its orphans
        run.until("hello")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 130
        lost, *_, end = told(run)
        assert (lost["event"], lost["kind"], lost["root"]) == ("incident_closed", "node_lost", "node0")
        assert (end["event"], end["outcome"]) == ("job_ended", "cancelled")


def test_sigkill_of_the_run_takes_its_hooks_along(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "up")
    hook = "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    open('up', 'w').write('up')\nsignal.pause()\n"
    (tmp_path / "hook.py").write_text(hook)
    with job(tmp_path, '["python", "hook.py"]', ONCE + "import signal; signal.pause()") as run:
        assert (tmp_path / "up").read_text() == "up"
        runner = run.named("flowdist.runtime.hooks.hook_runner")[0]  # a hook that is being started has its name, too
        (child,) = children(runner)
        (grandchild,) = children(child)
        with Deaths([runner, child, grandchild]) as deaths:
            run.process.kill()
            assert deaths.survivors() == []


@contextmanager
def runner(folder: Path, code: str, **options: float) -> Iterator[subprocess.Popen[str]]:
    """The runner alone, with a hook in Python; its log is on stdout."""
    config = HookConfig((sys.executable, "-c", code), str(folder), **options)  # type: ignore[arg-type]
    run = [sys.executable, "-m", "flowdist.runtime.hooks.hook_runner", msgspec.json.encode(config).decode()]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            hooks = children(process.pid)
            process.kill()
            for hook in hooks:  # a hook may wait at a gate that is not opened any more
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(hook, signal.SIGKILL)


def tell(process: subprocess.Popen[str], *calls: int | str) -> None:
    """Return the call for an incident, by its number, or for the end."""
    assert process.stdin is not None
    for call in calls:
        what = {"event": "job_ended"} if call == "end" else {"event": "incident_closed", "incident": call}
        process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [line.strip() for line in process.stdout]


WAIT = "import json, sys; n = json.load(sys.stdin).get('incident', 'end'); open('gate').read(); print('did', n)"


def test_one_hook_runs_at_a_time_and_the_end_overtakes_calls_that_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with runner(tmp_path, WAIT) as process:
        assert process.stdout is not None
        tell(process, 1)
        lines = [process.stdout.readline().strip()]
        tell(process, 2, "end")
        for _ in range(3):
            (tmp_path / "gate").write_text("go")
            while not lines[-1].startswith("did"):
                lines.append(process.stdout.readline().strip())
            lines.append(process.stdout.readline().partition(" after")[0])
        assert lines == [
            *("--- incident 1: starts", "did 1", "--- incident 1: exit code 0"),
            *("--- end of the job: starts", "did end", "--- end of the job: exit code 0"),
            *("--- incident 2: starts", "did 2", "--- incident 2: exit code 0"),
        ]
        assert process.wait() == 0


def test_calls_beyond_the_queue_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with runner(tmp_path, "open('gate').read()", queue_max=1) as process:
        tell(process, 1)
        assert process.stdout is not None and process.stdout.readline() == "--- incident 1: starts\n"
        tell(process, 2, 3, 4)
        assert process.stdout.readline() == "--- incident 3: not run, 1 calls wait already\n"
        assert process.stdout.readline() == "--- incident 4: not run, 1 calls wait already\n"


def test_a_hook_that_still_runs_is_killed_when_the_time_after_the_end_is_over(tmp_path: Path) -> None:
    with runner(tmp_path, "import signal; signal.pause()", patience_s=0.2) as process:
        tell(process, "end")
        lines = said(process)
        assert lines == ["--- end of the job: starts", "--- end of the job: killed, 0.2 s after the end of the job"]
        assert process.wait() == 0 and children(process.pid) == []


def test_a_hook_that_does_not_read_and_an_object_that_fills_no_pipe(tmp_path: Path) -> None:
    with runner(tmp_path, "import sys; print(len(sys.stdin.read()))") as process:
        assert process.stdin is not None
        call = json.dumps({"event": "job_ended", "reason": "x" * 500_000})
        process.stdin.write(call + "\n")
        process.stdin.flush()
        assert str(len(call) + 1) in said(process)
    with runner(tmp_path, "pass") as process:
        assert process.stdin is not None
        process.stdin.write(call + "\n")
        process.stdin.flush()
        assert any("exit code 0" in line for line in said(process)) and process.wait() == 0


def test_processes_that_a_hook_leaves_behind_are_killed_with_it(tmp_path: Path) -> None:
    code = "import os, signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\nprint(child, flush=True)"
    with runner(tmp_path, code) as process:
        tell(process, 1)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "exit code 0" in lines[2]
        with Deaths([int(lines[1])]) as deaths:  # it is not reaped before the next hook starts
            assert deaths.survivors() == []
