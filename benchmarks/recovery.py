"""How torchrun and flowdist come back: one script, the same event, turn by turn in one run.

    python benchmarks/recovery.py [--rows A3,A1,...] [--modes torchrun,warm,...] [--trials 5] [--slow-trials 3]
                                  [--save FILE] [--load FILE] [--write-docs]

The script is an endless loop of gloo all_reduces, one every 50 ms. When it runs at full size the event of the row
comes, at a random phase; it has recovered when every rank of the new size has completed its first all_reduce. Modes:
`torchrun` with its shared store switched off, without which it does not recover in torch 2.13; `defaults`, torchrun as
it comes; `warm`, `cold` and `in-place`, flowdist. `--slow-trials` is for torchrun's rows that take half a minute and
more. `--load` adds what another call has saved: what is measured again replaces it. Measured, in seconds: from the
event to the last rank's first all_reduce; for joins also how long no all_reduce completed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import first_step
import torchrun_restart
from launchers import (
    IN_PLACE,
    SCRIPT,
    Flowdist,
    Job,
    Size,
    Stamp,
    Torchrun,
    are_many,
    end_all,
    own_descendants,
    steps_after,
)
from sections import write_section

MODES = ("torchrun", "defaults", "warm", "cold", "in-place")
RATED = ("warm", "in-place")
START_S = 150.0  # to get to full size
THREE, TWO_OF_3, ONE_OF_3 = Size(3, 3), Size(2, 3), Size(1, 3)


class Row(NamedTuple):
    """One event. `after` is the world size that it leads to, `phase_s` the longest wait for a random moment."""

    what: str
    size: Size
    hit: Callable[[Job], int]
    after: int
    bar: str
    phase_s: float = 1.0
    slow: bool = False  # torchrun needs half a minute, or never comes back
    cap_s: float = 75.0
    outside: bool = False  # torchrun's store is hosted by none of the nodes
    joins: bool = False


ROWS = {
    "A3": Row("a worker is killed, one node, 4 workers", Size(1, 1, 4), lambda job: job.kill_worker(), 4, "0.15"),
    "A1": Row("a worker is killed, 3 nodes", THREE, lambda job: job.kill_worker(), 3, "0.05"),
    "A2": Row("a worker is killed, 2 nodes of at most 3", TWO_OF_3, lambda job: job.kill_worker(), 2, "", slow=True),
    "B1": Row("a node is lost, 3 to 2", THREE, lambda job: job.kill_node(2), 2, "0.02", 5.0, slow=True),
    "C1": Row("a node joins, 2 to 3", TWO_OF_3, lambda job: job.add_node(), 3, "0.5", slow=True, joins=True),
    "C2": Row(
        "a node joins, 1 to 2 of at most 3", ONE_OF_3, lambda job: job.add_node(), 2, "0.5", slow=True, joins=True
    ),
    "D1": Row("SIGTERM to an agent, 3 to 2", THREE, lambda job: job.term_agent(2), 2, "0.02", 5.0, slow=True),
    "E1": Row("the node that hosts the store is lost", THREE, lambda job: job.kill_node(0), 2, "", 5.0),
    "E2": Row("SIGTERM to the agent that hosts the store", THREE, lambda job: job.term_agent(0), 2, "", 5.0),
    "F1": Row("the node of rank 0 is lost", THREE, lambda job: job.kill_node(0), 2, "", 5.0, slow=True, outside=True),
    "S1": Row("a node falls silent", THREE, lambda job: job.stop_node(2), 2, "lease + 1.5 s", 5.0, slow=True, cap_s=60),
}
PHASES = ("noticed", "stopped", "store", "started", "imported", "group", "reduced")


class Trial(NamedTuple):
    """`recovered_s` is None when it did not; `phases` are seconds since the event."""

    recovered_s: float | None
    pause_s: float
    phases: dict[str, float]
    said: str = ""


def main() -> None:
    options = _options()
    own_descendants()
    chance = random.Random(options.seed)
    first_steps = first_step.run(options.scripts, options.trials, chance)
    first_step.report(first_steps)
    results: dict[str, dict[str, list[Trial]]] = {name: {mode: [] for mode in options.modes} for name in options.rows}
    turns = [(turn, name, mode) for turn in range(options.trials) for name in options.rows for mode in options.modes]
    turns = [turn for turn in turns if turn[0] < _trials(options, turn[1], turn[2])]
    started = time.monotonic()
    for i, (turn, name, mode) in enumerate(turns):
        trial = measure(ROWS[name], mode, chance)
        results[name][mode].append(trial)
        took = f"{trial.recovered_s:.3f} s" if trial.recovered_s is not None else f"never: {trial.said[-200:]!r}"
        pause = f", pause {trial.pause_s:.3f} s" if ROWS[name].joins else ""
        where = f"{i + 1}/{len(turns)}, {time.monotonic() - started:.0f} s"
        print(f"[{where}] {name} {mode}, trial {turn + 1}: {took}{pause}", file=sys.stderr, flush=True)
    counts = torchrun_restart.count(options.restarts, options.peer_restarts) if options.restarts else {}
    report(results, counts)
    if options.load:
        saved = json.loads(options.load.read_text())
        results, counts = merged(saved, results, counts)
        first_steps = merged_steps(saved, first_steps)
    if options.save:
        rows, scripts = (
            {name: {mode: [t._asdict() for t in trials] for mode, trials in row.items()} for name, row in found.items()}
            for found in (results, first_steps)
        )
        options.save.write_text(json.dumps({"rows": rows, "scripts": scripts, "restarts": counts}, indent=1))
    if options.write_docs and results:
        write_section("recovery", table(results, counts))
    if options.write_docs and first_steps:
        write_section("first step", first_step.table(first_steps))


def merged_steps(saved: dict[str, Any], results: first_step.Results) -> first_step.Results:
    """The same of the headline: a script that was measured now takes the place of the earlier one."""
    earlier = {
        name: {mode: [first_step.Trial(**trial) for trial in trials] for mode, trials in row.items()}
        for name, row in saved.get("scripts", {}).items()
    }
    return {**earlier, **results}


def merged(
    saved: dict[str, Any], results: dict[str, dict[str, list[Trial]]], counts: dict[str, tuple[int, int]]
) -> tuple[dict[str, dict[str, list[Trial]]], dict[str, tuple[int, int]]]:
    """What was measured in an earlier call, with what was measured now in its place."""
    rows = {
        name: {mode: [Trial(**trial) for trial in trials] for mode, trials in row.items()}
        for name, row in saved["rows"].items()
    }
    both = {name: {**rows.get(name, {}), **results.get(name, {})} for name in ROWS if name in rows or name in results}
    return both, counts or {who: (good, of) for who, (good, of) in saved["restarts"].items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", default=",".join(first_step.SCRIPTS), type=_names, help="of the headline")
    parser.add_argument("--rows", default=",".join(ROWS), type=_names)
    parser.add_argument("--modes", default="torchrun,warm,cold,in-place", type=lambda text: text.split(","))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--slow-trials", type=int, default=None, help="of torchrun, where it takes half a minute")
    parser.add_argument("--restarts", type=int, default=0, help="also count so many restarts with all defaults")
    parser.add_argument("--peer-restarts", type=int, default=5, help="the same under torchrun, where each takes long")
    parser.add_argument("--load", type=Path, help="what an earlier call has saved: it is in the table, too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--write-docs", action="store_true", help="replace the table of evidence/benchmarks.md")
    options = parser.parse_args()
    unknown = [*set(options.rows).difference(ROWS), *set(options.modes).difference(MODES)]
    unknown += set(options.scripts).difference(first_step.SCRIPTS)
    if unknown:
        known = f"rows are {', '.join(ROWS)}, modes {', '.join(MODES)}, scripts {', '.join(first_step.SCRIPTS)}"
        parser.error(f"unknown: {', '.join(unknown)}; {known}")
    return options


def _names(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _trials(options: argparse.Namespace, row: str, mode: str) -> int:
    if mode == "defaults":
        return 1  # it does not come back: once is enough to see it
    is_slow = ROWS[row].slow and mode == "torchrun" and options.slow_trials is not None
    return int(options.slow_trials if is_slow else options.trials)


def measure(row: Row, mode: str, chance: random.Random) -> Trial:
    """One job from its start to what came of the event."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        try:
            job = start(row, mode, Path(folder))
            if isinstance(job, Flowdist):
                job.until(bool, START_S)
                job.note_start()
            workers = row.size.nodes * row.size.procs
            if not job.until(lambda stamps: are_many(stamps, workers), START_S):
                return Trial(None, 0.0, {}, f"it did not start: {job.said()}")
            time.sleep(chance.uniform(0, row.phase_s))
            event_ns = row.hit(job)
            recovered = job.until(lambda stamps: len(steps_after(stamps, event_ns, row.after)) == row.after, row.cap_s)
            if not recovered:
                return Trial(None, 0.0, {}, job.said())
            again = steps_after(job.look(), event_ns, row.after)
            phases = {**_journal_phases(job, event_ns), **_stamp_phases(again)}
            return Trial(
                (max(stamps["step"] for stamps in again.values()) - event_ns) / 1e9,
                _pause(job.stamps, event_ns),
                {name: (t_ns - event_ns) / 1e9 for name, t_ns in phases.items()},
            )
        finally:
            end_all()


def start(row: Row, mode: str, folder: Path) -> Job:
    if mode in ("torchrun", "defaults"):
        return Torchrun(folder, row.size, shares_store=mode == "defaults", outside=row.outside)
    options = ("--set", "trainer.warm=false") if mode == "cold" else ()
    script = IN_PLACE if mode == "in-place" else SCRIPT
    return Flowdist(folder, row.size, (*options, "--set", "trainer.apart=true"), script)


def _stamp_phases(again: dict[int, dict[str, int]]) -> dict[str, int]:
    """When the last rank came to each of them."""
    words = {"imported": "imported", "group": "group", "reduced": "step"}
    have = {name: [stamps[word] for stamps in again.values() if word in stamps] for name, word in words.items()}
    return {name: max(times) for name, times in have.items() if times}


def _journal_phases(job: Job, event_ns: int) -> dict[str, int]:
    """When flowdist's controller decided, saw the last worker gone, had a store, and heard of the last start."""
    if not isinstance(job, Flowdist):
        return {}
    phases: dict[str, int] = {}
    for record in job.journal():
        t_ns, effects = record["t_ns"], [effect["type"] for effect in record["effects"]]
        if t_ns < event_ns:
            continue
        if "StopReplica" in effects or "OpenStore" in effects:
            phases.setdefault("noticed", t_ns)
        if "OpenStore" in effects:
            phases["stopped"] = t_ns
        if "StartReplica" in effects:
            phases["store"] = t_ns
        if record["event"]["type"] == "ReplicaStarted":
            phases["started"] = t_ns
    return phases


def _pause(stamps: list[Stamp], event_ns: int) -> float:
    """The longest time without an all_reduce, from the event until a moment after the recovery."""
    steps = sorted(stamp.t_ns for stamp in stamps if stamp.word == "step" and stamp.t_ns > event_ns)
    return max((after - before for before, after in zip([event_ns, *steps], steps, strict=False)), default=0) / 1e9


def report(results: dict[str, dict[str, list[Trial]]], counts: dict[str, tuple[int, int]]) -> None:
    """Medians, ratios, and where the time went."""
    for name, row in results.items():
        print(f"\n{name}: {ROWS[name].what}" + (f" (bar {ROWS[name].bar})" if ROWS[name].bar else ""))
        for mode, trials in row.items():
            if not trials:
                continue
            print(f"  {mode:9} {_told(trials)}{_ratio(row, mode)}")
            if ROWS[name].joins:
                print(
                    f"  {'':9} pause {_spread([trial.pause_s for trial in trials if trial.recovered_s])}"
                    f"{_ratio(row, mode, pause=True)}"
                )
            if where := _where(trials):
                print(f"  {'':9} {where}")
    for who, (good, all_) in counts.items():
        print(f"restarts with all defaults, {who}: {good} of {all_}")


def _told(trials: list[Trial]) -> str:
    times = [trial.recovered_s for trial in trials if trial.recovered_s is not None]
    if not times:
        return f"never (0 of {len(trials)})"
    return _spread(times) + (f" ({len(times)} of {len(trials)})" if len(times) < len(trials) else "")


def _spread(times: list[float]) -> str:
    if not times:
        return "never"
    return f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f} s"


def _median(trials: list[Trial], *, pause: bool = False) -> float | None:
    times = [trial.pause_s if pause else trial.recovered_s for trial in trials if trial.recovered_s is not None]
    return statistics.median(times) if times else None


def _share(row: dict[str, list[Trial]], mode: str, *, pause: bool = False) -> str:
    """Of torchrun's time; empty where one of them never came back, or was not measured."""
    ours, theirs = (_median(row.get(which, []), pause=pause) for which in (mode, "torchrun"))
    return f"{ours / theirs:.3f}" if ours and theirs else ""


def _ratio(row: dict[str, list[Trial]], mode: str, *, pause: bool = False) -> str:
    share = _share(row, mode, pause=pause) if mode != "torchrun" else ""
    return f" = {share} of torchrun's" if share else ""


def _where(trials: list[Trial]) -> str:
    """Medians of the time between one phase and the next."""
    gaps: dict[str, list[float]] = {}
    for trial in trials:
        before = 0.0
        for phase in PHASES:
            if phase in trial.phases:  # the controller may hear of a start after the worker has begun
                gaps.setdefault(phase, []).append(max(0.0, trial.phases[phase] - before))
                before = max(before, trial.phases[phase])
    told = [f"{phase} +{1000 * statistics.median(times):.0f}" for phase, times in gaps.items()]
    return f"{', '.join(told)} ms" if told else ""


def table(results: dict[str, dict[str, list[Trial]]], counts: dict[str, tuple[int, int]]) -> str:
    """For the docs: a row for each event, a column for each mode."""
    modes = [mode for mode in MODES if any(row.get(mode) for row in results.values())]
    head = [*modes, *(f"{mode} / torchrun" for mode in RATED)]
    lines = [f"| event | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name, row in results.items():
        for pause in (False, True) if ROWS[name].joins else (False,):
            what = f"{name}: {ROWS[name].what}" if not pause else "... during which no step is done for"
            cells = [_cell(row.get(mode, []), pause=pause) for mode in modes]
            cells += [_share(row, mode, pause=pause) for mode in RATED]
            lines.append(f"| {what} | {' | '.join(cells)} |")
    for who, (good, all_) in counts.items():
        lines.append(f"\nRestarts with all defaults, {who}: {good} of {all_}.")
    return "\n".join(lines)


def _cell(trials: list[Trial], *, pause: bool) -> str:
    median = _median(trials, pause=pause)
    if not trials:
        return ""
    return f"{median:.2f} s" if median is not None else "never"


if __name__ == "__main__":
    main()
