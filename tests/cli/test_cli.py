"""The command line as a user types it: help, unknown words, exit codes, and modules that are not imported."""

from __future__ import annotations

import errno
import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from flowdist import __version__
from flowdist.cli.main import VERBS as VERBS_OF_MAIN
from flowdist.cli.main import WORDS_OF_OTHERS, Verb, cli
from flowdist.cli.shared import common
from flowdist.graph import decode_graph
from tests.runtime.harness import Deaths

VERBS = (
    *(
        "check",
        "plan",
        "graph",
        "explain",
        "gpus",
        "simulate",
        "run",
        "join",
        "torchrun",
        "replay",
        "timeline",
        "diff",
        "why",
    ),
    *("list", "status", "logs", "scale", "drain", "cordon", "uncordon", "cancel", "report"),
)
ROOT = Path(__file__).parents[2]
GANG = str(ROOT / "scenarios/topologies/gang.py")


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    run = [sys.executable, "-m", "flowdist", *arguments]
    return subprocess.run(run, capture_output=True, check=False, **{"text": True, **options})


def flowdist(*arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(cli, arguments)


def test_help_names_every_verb() -> None:
    done = process("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert f"\n  {verb}  " in done.stdout
    headings = [line for line in done.stdout.splitlines() if line.endswith(":")]
    assert headings == ["Options:", "Before anything runs:", "Run:", "While it runs:", "Afterwards:"]


def test_a_verb_of_a_new_group_gets_a_heading_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS_OF_MAIN, "dance", Verb("Others", "inspect", "Dance."))
    told = CliRunner().invoke(cli, ["--help"]).output
    assert "Others:\n  dance" in told


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = flowdist(verb, "--help")
    assert done.exit_code == 0 and f"Usage: cli {verb}" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from flowdist.cli.main import cli;"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0;"
        "print([m for m in ('torch', 'rich', 'msgspec', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["check", "plan", "graph", "simulate"])
def test_neither_torch_nor_rich_is_imported(verb: str) -> None:
    code = (
        f"import sys; from click.testing import CliRunner; from flowdist.cli.main import cli;"
        f"r = CliRunner().invoke(cli, ['{verb}', '{GANG}']); assert r.exit_code == 0, r.output;"
        "sys.exit(str({'torch', 'rich'} & set(sys.modules)) if {'torch', 'rich'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_misspelt_verb_is_answered_with_the_right_one() -> None:
    done = process("simulat")
    assert done.returncode == 2 and "did you mean 'simulate'?" in done.stderr


def test_check_says_ok_in_a_line() -> None:
    done = flowdist("check", GANG)
    assert done.exit_code == 0 and done.stdout == "gang: ok (1 role, up to 4 replicas, 4 nodes)\n"


def test_plan_as_json_holds_the_graph() -> None:
    content = json.loads(flowdist("plan", GANG, "--json").stdout)
    assert (content["format"], content["kind"]) == (1, "plan")
    graph = decode_graph(json.dumps(content["graph"]))
    assert graph.name == "gang" and content["restarts"]["trainer"]["failure"] == {"trainer": "role"}
    assert content["placement"] == {f"trainer/{i}": f"node{i}" for i in range(4)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate", GANG, "--fail", "node9@3s"], "there is no 'node9'"),
        (["simulate", GANG, "--fail", "node1@3s:exit=3"], "exit of a node means nothing here"),
        (["simulate", GANG, "--scale", "trainer@3s"], "cannot be read"),
        (["simulate", GANG, "--scale", "trianer=2@3s"], "no role 'trianer'"),
        (["simulate", GANG, "--until", "soon"], "--until soon is not a duration"),
        (["simulate", GANG, "--until", "10sec"], "help: the unit is s: write 10s"),
        (["simulate", GANG, "--fail", "node1@10sec"], "help: the unit is s: write 10s"),
        (["simulate", GANG, "--fail", "node9@3s"], "help: the nodes are node0, node1, node2, node3"),
        (["simulate", GANG, "--drain", "node9@3s"], "help: the nodes are node0, node1, node2, node3"),
        (["simulate", "nope.toml"], "nope.toml: No such file"),
        (["run", GANG, "--fail", "node1@3s:partition=node2"], "run cannot cut node1 off from node2"),
        (["run", GANG, "--add", "node1@3s"], "there is a 'node1' already"),
        (["run", GANG, "--replicas", "2"], "--replicas is for scripts"),
        (["run", GANG, "-p", "x"], "-p x has no value"),
        (["replay", GANG], "is no journal"),
        (["status", "zebra"], "there is no run 'zebra' in runs"),
        (["why", "zebra"], "there is no run 'zebra' in runs"),
        (["timeline", "zebra"], "there is no run 'zebra' in runs"),
        (["ui", "zebra"], "there is no run 'zebra' in runs"),
        (["logs", "--run", "zebra"], "there is no run 'zebra' in runs"),
        (["scale", "trainer"], "'trainer' is not a ROLE=N"),
        (["scale", "trainer=99999999999999999999"], "is not a ROLE=N"),
        (["scale", "trainer=-1"], "'trainer=-1' is not a ROLE=N"),
        (["drain", "node1", "--runs", "nowhere"], "there is no run in nowhere yet"),
        (["check", "nope.py"], "no topology file 'nope.py'"),
    ],
)
def test_a_users_mistake_is_told_in_words_with_exit_code_2(arguments: list[str], text: str) -> None:
    done = flowdist(*arguments)
    assert done.exit_code == 2 and text in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "help:" in done.stderr or "nope.toml" in text


@pytest.mark.parametrize("encoding", ["latin-1:strict", "ascii:strict", "ascii:surrogateescape"])
def test_what_the_terminal_cannot_encode_is_replaced(tmp_path: Path, encoding: str) -> None:
    trace = tmp_path / "trace.jsonl"
    assert flowdist("simulate", GANG, "--until", "1m", "--fail", "node1@30s", "--trace", str(trace)).exit_code == 4
    trace.write_text(trace.read_text().replace('"target":"node1"', '"target":"\u4e2d1"'), encoding="utf-8")
    limited = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = process("replay", str(trace), text=None, encoding="latin-1", env=limited)
    assert done.returncode == 0 and "node1@30s hits ?1\n" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "error: runs/x cannot be written: No space left on device\n"),
        (errno.EACCES, "error: runs/x: Permission denied\n"),
        (errno.EAGAIN, "error: this machine refuses: Resource temporarily unavailable\nhelp: a limit on the number"),
        (errno.EFBIG, "error: this machine refuses: File too large\nhelp: the limit on the size of a file is reached"),
        (errno.EMFILE, "error: this machine refuses: Too many open files\nhelp: the limit on open files is reached"),
    ],
)
def test_what_disk_and_machine_refuse_is_an_error_in_words(
    capsys: pytest.CaptureFixture[str], number: int, text: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        write.main([str(number)], standalone_mode=False)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(text)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_cannot_be_written_is_an_error_in_words_with_json_too(unbuffered: str) -> None:
    command = [sys.executable, "-m", "flowdist", "plan", "--json", "examples/word2vec/topology.py"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (2, "error: a file cannot be written: No space left on device\n")


def test_help_that_cannot_be_written_is_an_error_in_words() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "flowdist", "run", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    text = "error: stdout could not be written, and lacks some of the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, text)


INTERRUPTED = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "flowdist.cli.run.run":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["flowdist", "run", "topology.py"]
from flowdist.cli.main import main
main()
"""


def test_an_interrupt_while_a_verb_is_imported_ends_it_as_one_that_comes_later() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_compiled_module_that_a_full_disk_has_cut_off_is_an_error_in_words(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.pyc")
    shutil.copytree(ROOT / "flowdist", tmp_path / "flowdist", ignore=ignored)
    verb = tmp_path / "flowdist/cli/run/new.py"
    compiled = Path(py_compile.compile(str(verb), doraise=True))
    compiled.write_bytes(compiled.read_bytes()[:-100])
    command = [sys.executable, "-m", "flowdist", "new"]  # finds the copy in its working folder
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert ended.returncode == 2 and "Aborted" not in ended.stderr
    assert f"delete the folders __pycache__ below {tmp_path / 'flowdist'}" in ended.stderr


def test_an_error_of_flowdist_itself_passes() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        write.main([str(errno.EBADF)], standalone_mode=False)


@common.verb("write")
@click.argument("number", type=int)
def write(number: int) -> None:
    raise OSError(number, os.strerror(number), "runs/x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulate", "--json", "--seed", "x"), "Invalid value for '--seed': 'x' is not a valid integer."),
        (("simulate", "--goodputt", "1", "--json"), "--goodputt"),
        (("check", "--json", "a.py", "b.py"), "Got unexpected extra argument"),
        (("chekc", "--json"), "no such command 'chekc'; did you mean 'check'?"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_an_object_under_json(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    [problem] = json.loads(done.stdout)["problems"]
    assert done.exit_code == 2 and words in problem["message"]
    assert problem["help"].startswith("see ") and problem["help"].endswith(" --help")


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_printed(option: str) -> None:
    assert CliRunner().invoke(cli, [option]).output == f"flowdist, version {__version__}\n"


def test_words_of_other_tools_lead_to_a_command_line_that_can_be_read() -> None:
    for word, meant in WORDS_OF_OTHERS.items():
        assert word not in VERBS_OF_MAIN
        refused = CliRunner().invoke(cli, [word])
        assert refused.exit_code == 2 and f"no such command '{word}'; write {meant}" in refused.stderr
        for line in re.findall("flowdist [-a-z]+(?: -[-a-z]+)*", meant):
            (verb, *options) = line.split()[1:]
            known = CliRunner().invoke(cli, [verb] if verb.startswith("-") else [verb, "--help"])
            assert known.exit_code == 0 and all(option in known.output for option in options), line


@pytest.mark.parametrize(
    ("words", "meant"), [(["help", "logs"], "flowdist logs --help"), (["my.py", "--lr=1"], "flowdist run my.py")]
)
def test_what_follows_the_word_is_in_the_command_line_that_is_meant(words: list[str], meant: str) -> None:
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 2 and f"no such command {words[0]!r}; write {meant}\n" in refused.stderr


def test_help_of_run_has_the_exit_codes_of_the_docs() -> None:
    rows = re.findall(r"^\| (\d+) \| ", (ROOT / "docs/run.md").read_text(), re.MULTILINE)
    words = " ".join(CliRunner().invoke(cli, ["run", "--help"]).output.split())
    _, _, codes = words.partition("Exit code")
    assert len(rows) == 5 and all(f" {code} if " in codes for code in rows)


def test_without_json_and_for_what_workers_get_it_is_told_in_words() -> None:
    for arguments in (("simulate", "--seed", "x"), ("simulate", "--seed", "x", "--", "--json")):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2 and not done.stdout and "Invalid value for '--seed'" in done.stderr


LATE_INTERRUPT = """
import os, signal, sys
from flowdist.cli.main import main
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)
late = Late()
sys.argv = ["flowdist", "--no-such-option"]
main()
"""


def test_an_interrupt_while_python_ends_does_not_replace_the_exit_code() -> None:
    ended = subprocess.run([sys.executable, "-c", LATE_INTERRUPT], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr


UNREAD = """
import os, sys
from flowdist.cli.main import main
os.set_blocking(1, False)
with open(1, "wb", buffering=0, closefd=False) as stdout:
    while stdout.write(4096 * b"x"):
        pass
os.set_blocking(1, True)
print("the pipe is full", file=sys.stderr, flush=True)
sys.argv = ["flowdist", "--version"]
main()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_interrupts_end_a_verb_whose_output_nobody_reads(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", UNREAD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as verb:
        try:
            assert verb.stderr is not None and verb.stderr.readline() == b"the pipe is full\n"
            with Deaths([verb.pid]) as deaths:
                for _ in range(50):
                    if not deaths.survivors(0.2):
                        break
                    verb.send_signal(signal.SIGINT)
                else:
                    pytest.fail("it goes on after 50 interrupts")
        finally:
            verb.kill()
