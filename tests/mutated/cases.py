"""Cases of the campaign: a mutated input in a folder, and the command lines that read it.

A case is given by its kind and a number. The same number makes the same case, so that a failure can be run again:

    python -m tests.mutated journal 17
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

import msgspec
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.graph import decode_graph, encode_graph
from flowdist.record.journal import Header, Line, encode_line
from flowdist.record.reader import CheckChain
from flowdist.record.replay import Replay
from flowdist.report.record.spending import time_of_run
from flowdist.report.record.summary import summary_of
from flowdist.runtime.run_folder.runs import status_at_end
from flowdist.runtime.saved_files import sealed
from tests.mutated import mutations
from tests.report.records import simulated

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))
TOPOLOGIES = sorted((ROOT / "scenarios/topologies").glob("*.py")) + sorted((ROOT / "examples").glob("*/topology.py"))
LARGE = ("hundred_thousand.py",)  # seconds even without a mistake
LIMIT_S = 10  # no command line may take longer
EXIT_CODES = (0, 1, 2, 3, 4, 130)

FAULTS = (
    *("node2@3m/2m", "trainer/0@step=trainer,100:exit=3", "trainer/1@5m:hang", "node1@1m:lost/30s", "controller@2m"),
    *("node1@2m:preempt=30s", "trainer/2@generation=trainer,1+2s:pause/20s", "node0@1m:partition=node1/30s"),
    *("node3@90s:drop=0.2/1m", "node1@1m:flap=5s/1m", "trainer/0@checkpoint=trainer,2:torn-checkpoint"),
    *("trainer@3m:scale=3", "node9@1m:add", "node1@2m:drain", "node2@every=4m/1m", "node1@1m:slow=3x/2m"),
    *("all@4m:kill", "trainer/3@2m:oom", "node0@3m:delay=50ms/1m", "trainer@1m:disk-full/1m"),
)
RATES = (
    "node-kill=6.5e-3/node-day/15m",
    "trainer-kill=6/replica-hour",
    "node-lost=2/node-day/1m..5m",
    "hang=1/job-hour",
)


class Case(NamedTuple):
    """A mutated input in its folder, and the arguments of each command line that reads it."""

    commands: list[list[str]]


class TooLongError(BaseException):
    """A command line takes longer than `LIMIT_S`. No handler of the product may catch it."""


def topology(draw: Random, folder: Path) -> Case:
    """A topology file of the product with one token changed."""
    source = draw.choice([path for path in TOPOLOGIES if path.name not in LARGE])
    shutil.copytree(source.parent, folder / "t", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "t" / source.name
    path.write_text(mutations.of_python(draw, source.read_text()))
    verbs = [["check"], ["plan"], ["simulate", "--until", "10m"], ["explain", "--fail", "all"]]
    return Case([[*verb[:1], str(path), *verb[1:]] for verb in verbs])


def scenario(draw: Random, folder: Path) -> Case:
    """A scenario file of the product with one line, value or word changed."""
    source = draw.choice(SCENARIOS)
    (folder / "topologies").symlink_to(ROOT / "scenarios/topologies")
    path = folder / "s.toml"
    path.write_text(mutations.of_lines(draw, source.read_text()))
    return Case([["simulate", str(path)]])


def fault(draw: Random, folder: Path) -> Case:
    """A fault, rate, order or file of faults with one part changed."""
    gang = str(ROOT / "scenarios/topologies/gang.py")
    option = draw.choice(("--fail", "--fail", "--fail", "--rate", "--faults", "--toml", "--scale", "--until", "--add"))
    until = [] if option == "--until" else ["--until", "10m"]
    if option == "--fail":
        given = [option, mutations.of_words(draw, draw.choice(FAULTS))]
    elif option == "--rate":
        given = [option, mutations.of_words(draw, draw.choice(RATES))]
    elif option == "--toml":
        text = f"faults = {json.dumps(list(FAULTS[:3]))}\nrates = {json.dumps(list(RATES[:2]))}\n"
        (folder / "faults.toml").write_text(mutations.of_lines(draw, text))
        given = ["--faults", str(folder / "faults.toml")]
    elif option == "--faults":
        text = "\n".join([*FAULTS[:5], *(f"rate {rate}" for rate in RATES)]) + "\n"
        (folder / "faults.txt").write_bytes(mutations.of_bytes(draw, mutations.of_lines(draw, text).encode()))
        given = [option, str(folder / "faults.txt")]
    else:
        valid = {"--scale": "trainer=2@3m", "--until": "1m30s", "--add": "node9@1m"}[option]
        given = [option, mutations.of_words(draw, valid)]
    return Case([["simulate", gang, *given, *until]])


@functools.cache
def _records() -> list[tuple[bytes, list[bytes]]]:
    """Return some runs: the bytes of graph.json, and the lines of a journal without checks."""
    runs = [
        simulated("gang.py", "node2@3m/2m", "trainer/1@5m:hang"),
        simulated("ps.py", "ps/0@2m", "node1@4m:lost/1m"),
        simulated("core.py", "controller@1m", "node0@2m:drain"),
        simulated("actors.py", "node1@1m:preempt=20s"),
    ]
    found = []
    for run in runs:
        found.append((encode_graph(_header(run.lines).graph), [encode_line(line) for line in run.lines]))
    return found


def journal(draw: Random, folder: Path) -> Case:
    """The journal of a run with bytes, lines or values changed: with the checks of before, with new ones, or none."""
    graph, lines = draw.choice(_records())
    lines = lines[: draw.randrange(2, len(lines) + 1)]  # killed at some time
    how, at = draw.randrange(6), draw.randrange(len(lines))
    if how < 3:  # a value, with a check that fits: a writer that was wrong
        lines = [*lines[:at], _mutated_json(draw, lines[at]), *lines[at + 1 :]]
        data = _sealed(lines) if how < 2 else b"".join(lines)
    elif how == 3:
        data = mutations.of_bytes(draw, _sealed(lines))
    else:
        sealed = _sealed(lines).splitlines(keepends=True)
        other = draw.choice(draw.choice(_records())[1])
        edits = ([], [sealed[at], sealed[at]], [draw.choice(sealed)], [other], [sealed[at], b"\n"])
        sealed[at : at + 1] = draw.choice(edits)
        data = b"".join(sealed)
    return _run_folder(folder, graph, data)


def graph_json(draw: Random, folder: Path) -> Case:
    """The graph.json of a run, or the graph in the header of its journal, with a byte or a value changed."""
    graph, lines = draw.choice(_records())
    if draw.randrange(4) == 0:
        return _run_folder(folder, mutations.of_bytes(draw, graph), _sealed(lines))
    changed = _mutated_json(draw, graph)
    header = json.loads(lines[0])
    header["graph"] = json.loads(changed)
    case = _run_folder(folder, changed, _sealed([json.dumps(header).encode() + b"\n", *lines[1:]]))
    try:
        sound = decode_graph(changed)
    except ValueError:
        return case
    _simulate_soon(sound)
    return case


def _simulate_soon(graph: object) -> None:
    """Simulate a graph that was accepted: whatever is accepted has to be usable."""
    from flowdist.errors import FlowdistError
    from flowdist.sim.simulation import Simulation, with_nodes

    with contextlib.suppress(FlowdistError):
        Simulation(with_nodes(graph), checks="paced").run(300 * 10**9)  # type: ignore[arg-type]


def _mutated_json(draw: Random, data: bytes) -> bytes:
    return json.dumps(mutations.of_json(draw, json.loads(data)), separators=(",", ":")).encode() + b"\n"


def _sealed(lines: list[bytes]) -> bytes:
    chain = CheckChain()
    return b"".join(chain.add_check(line) for line in lines)


def _header(lines: Sequence[Line]) -> Header:
    assert isinstance(lines[0], Header)
    return lines[0]


@functools.cache
def _saved() -> dict[str, bytes]:
    """Return the files that a run of `gang.py` leaves in its folder beside its graph and journal, by their names."""
    run = simulated("gang.py", "node2@3m/2m", "trainer/1@5m:hang")
    header = _header(run.lines)
    replay = Replay(header)
    for line in run.lines[1:]:
        replay.hear(line)
    time = time_of_run(replay.job.graph, replay.sheet)
    start = {
        "started_at": "2026-11-22T20:59:31",
        "host": "a",
        "flowdist": "0.1.0",
        "python": "3.11.7",
        "torch": None,
    }
    return {
        "summary.json": sealed({**summary_of(replay.job, run.lines), **time, "root_cause": "x"}).encode(),
        "status.json": sealed(msgspec.to_builtins(status_at_end(Path("mutated"), header, replay))).encode(),
        "environment.json": json.dumps({"format": 1, "kind": "environment", "starts": [start]}).encode(),
        "listens.json": b'{"endpoint":"127.0.0.1:29400","job":"gang"}',
    }


def saved_file(draw: Random, folder: Path) -> Case:
    """The folder of a run that is over, with a byte or a value of one of its other files changed."""
    run = simulated("gang.py", "node2@3m/2m", "trainer/1@5m:hang")
    journal = _sealed([encode_line(line) for line in run.lines])
    _run_folder(folder, encode_graph(_header(run.lines).graph), journal)
    name = draw.choice(list(_saved()))
    for other, data in _saved().items():
        how = mutations.of_bytes if draw.randrange(3) == 0 else _mutated_json
        (folder / "runs/mutated" / other).write_bytes(how(draw, data) if other == name else data)
    readers = [["status", "mutated"], ["report", "mutated"], ["list"]]  # other commands read the journal alone
    commands = [[*verb, *more] for verb in readers for more in ([], ["--json"])]
    return Case([[*command, "--runs", str(folder / "runs")] for command in (*commands, ["run", "--resume", "mutated"])])


def _run_folder(folder: Path, graph: bytes, journal: bytes) -> Case:
    run = folder / "runs/mutated"
    run.mkdir(parents=True)
    (run / "graph.json").write_bytes(graph)
    (run / "journal.jsonl").write_bytes(journal)
    base = ["--runs", str(folder / "runs")]
    verbs = [["status", "mutated"], ["status", "mutated", "--json"], ["report", "mutated"], ["list"]]
    path = str(run / "journal.jsonl")
    return Case(
        [
            *([*verb, *base] for verb in verbs),
            ["logs", "--events", "--run", "mutated", *base],
            ["replay", path],
            ["replay", path, "--state"],
            ["timeline", path, "--format", "perfetto", "-o", "-"],
            ["timeline", path, "-o", "-"],
            ["diff", path, path],
            ["replay", path, "--fail", "node1@30s"],
        ]
    )


KINDS: dict[str, Callable[[Random, Path], Case]] = {
    "topology": topology,
    "scenario": scenario,
    "fault": fault,
    "journal": journal,
    "graph": graph_json,
    "saved": saved_file,
}


def defects(kind: str, number: int, folder: Path) -> Iterator[str]:
    """Run one case in an empty folder, and yield every defect: an exception that is no answer, or no answer in time.

    Call it in the main thread of a process: it uses the timers of the process.
    """
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    _limit(LIMIT_S)
    try:
        case = KINDS[kind](Random(f"{kind} {number}"), folder)
    except BaseException:
        yield f"{kind} {number}: making the case: {traceback.format_exc()}"
        return
    finally:
        _limit(0)
    for arguments in case.commands:
        if (text := _defect(arguments)) is not None:
            yield f"{kind} {number}: flowdist {' '.join(arguments)}\n{text}"


def _defect(arguments: list[str]) -> str | None:
    """Run a command line in this process, and return what is wrong with its answer; None if nothing is."""
    _limit(LIMIT_S)
    try:
        done = CliRunner().invoke(cli, arguments)
    except BaseException:  # TooLongError among them
        return traceback.format_exc()
    finally:
        _limit(0)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "".join(traceback.format_exception(done.exception))
    if "Traceback (most recent call last)" in done.stderr:
        return done.stderr
    if done.exit_code not in EXIT_CODES:
        return f"exit code {done.exit_code}"
    if done.exit_code == 2 and "rror" not in done.output and '"problems"' not in done.output:
        return f"exit code 2 without an error: {done.output[-500:]}"
    return None


def _limit(seconds: float) -> None:
    """Set the limit, in seconds of CPU time, so that a busy machine fails no case; 0: no limit.

    The limit of real time, for what waits and does not compute, is ten times as long.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TooLongError(f"no answer after {LIMIT_S} s")
