"""From SIGKILL to the next optimizer step, for scripts that people run: the headline of benchmarks/recovery.py.

Four workers on one node train under torchrun, with its shared store switched off, and under `flowdist torchrun` without
any option. One worker is killed in the first second of the steps, and one 15 s later. The time ends with the last
rank's first optimizer step in the new generation. Then the job is ended, and the same command is started once more: the
time from its start to the last rank's first optimizer step.

`ddp` is a script with DistributedDataParallel, AdamW and gloo. `all_reduce` is a loop of all_reduces without optimizer.
The others are those of examples/frameworks, with a few lines before them: torch's own hook for optimizer steps writes
down each step, and makes it take 50 ms more. Trials alternate.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from launchers import (
    IN_PLACE,
    SCRIPT,
    STAMPING,
    FlowdistTorchrun,
    Job,
    Size,
    Torchrun,
    are_many,
    end_all,
    steps_after,
)

EXAMPLES = Path(__file__).parents[1] / "examples/frameworks"
FUTURE = "from __future__ import annotations\n"
START_S = 300.0  # to get to the steps before the event: Lightning imports much, four times
CAP_S = 150.0
TRAINS_S = 15.0  # between the two kills
FOUR = Size(1, 1, 4)

STEPS = f"""{STAMPING}
import datetime, torch, torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
def stepped(*_):
    if number < 0:
        stamp("group")  # the script has not told when it had its group: it was before its first step
    stamp("step")
    time.sleep(0.05)
    if not os.path.exists(f"/proc/{{os.environ['BENCH_PID']}}"):  # the benchmark was killed
        os._exit(1)
register_optimizer_step_post_hook(stepped)
"""
MODEL = """
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
"""
TRAIN = """
def train(model, optimizer, done=lambda: None):
    model = torch.nn.parallel.DistributedDataParallel(model)
    while True:
        loss = model(torch.randn(32, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()
"""
DDP = f"""{STEPS}{MODEL}{TRAIN}
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
stamp("group")
train(model, torch.optim.AdamW(model.parameters()))
"""
DDP_IN_PLACE = f"""{STEPS}{MODEL}{TRAIN}
from flowdist import worker
def generation(state):
    stamp("group")
    train(state.model, state.optimizer, state.commit)
state = worker.ElasticState(model=model, optimizer=torch.optim.AdamW(model.parameters()), step=0)
worker.elastic(generation, state, backend="gloo")
"""


class Script(NamedTuple):
    """A script, the one that stays in place if there is one, and the package that it needs."""

    what: str
    text: str
    in_place: str = ""
    arguments: tuple[str, ...] = ()
    package: str = "torch"

    @property
    def modes(self) -> tuple[str, ...]:
        """Return how it can run."""
        return ("torchrun", "flowdist", "in-place") if self.in_place else ("torchrun", "flowdist")


def example(name: str) -> str:
    """Return an example whose optimizer steps are written down."""
    head, future, rest = (EXAMPLES / f"{name}.py").read_text().partition(FUTURE)
    return head + future + STEPS + rest


ENDLESS = ("--steps", "1000000000")
SCRIPTS = {
    "ddp": Script("DDP and AdamW", DDP, DDP_IN_PLACE),
    "all_reduce": Script("a loop of all_reduces", SCRIPT, IN_PLACE),
    "fsdp2": Script("FSDP2, asynchronous DCP", example("fsdp2_checkpoint"), arguments=ENDLESS),
    "lightning": Script(
        "Lightning", example("lightning_fit"), arguments=("--epochs", "1000000000"), package="lightning"
    ),
    "accelerate": Script(
        "accelerate", example("accelerate_loop"), arguments=("--epochs", "1000000000"), package="accelerate"
    ),
    "transformers": Script("transformers", example("transformers_trainer"), arguments=ENDLESS, package="transformers"),
}
HEADLINE = ("ddp", "all_reduce")


class Trial(NamedTuple):
    """Seconds from both kills, and from the second start, to the last rank's first step; None where it never came."""

    kill_s: float | None
    start_s: float | None = None
    said: str = ""
    later_s: float | None = None


Results = dict[str, dict[str, list[Trial]]]


def run(names: list[str], trials: int, chance: random.Random) -> Results:
    """Measure the scripts, turn by turn. A script whose package is missing is left out, with a line."""
    missing = [name for name in names if importlib.util.find_spec(SCRIPTS[name].package) is None]
    for name in missing:
        print(f"{name}: {SCRIPTS[name].package} is not installed, so it is left out", file=sys.stderr)
    results: Results = {name: {mode: [] for mode in SCRIPTS[name].modes} for name in names if name not in missing}
    for turn in range(trials):
        for name, row in results.items():
            for mode, found in row.items():
                trial = measure(SCRIPTS[name], mode, chance)
                found.append(trial)
                kills = f"{_seconds(trial.kill_s)}, later {_seconds(trial.later_s)}"
                told = f"kill {kills}, second start {_seconds(trial.start_s)} {trial.said[-300:]!r}"
                print(f"{name} {mode}, trial {turn + 1}: {told}", file=sys.stderr, flush=True)
    return results


def measure(script: Script, mode: str, chance: random.Random) -> Trial:
    """One job from its start to its second start."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        try:
            text = script.in_place if mode == "in-place" else script.text
            launcher = Torchrun if mode == "torchrun" else FlowdistTorchrun
            job = launcher(Path(folder), FOUR, text, script.arguments)
            if not job.until(lambda stamps: are_many(stamps, FOUR.procs), START_S):
                return Trial(None, said=f"it did not start: {job.said()}")
            time.sleep(chance.uniform(0, 1))
            kill_s = _until_first_step(job, job.kill_worker(), CAP_S)
            if kill_s is None:
                return Trial(None, said=job.said())
            time.sleep(TRAINS_S)
            later_s = _until_first_step(job, job.kill_worker(), CAP_S)
            if later_s is None:
                return Trial(kill_s, said=job.said())
            start_s = _until_first_step(job, job.start_again(), START_S)
            return Trial(kill_s, start_s, job.said() if start_s is None else "", later_s)
        finally:
            end_all()


def _until_first_step(job: Job, event_ns: int, patience_s: float) -> float | None:
    if not job.until(lambda stamps: len(steps_after(stamps, event_ns, FOUR.procs)) == FOUR.procs, patience_s):
        return None
    again = steps_after(job.look(), event_ns, FOUR.procs)
    return (max(stamps["step"] for stamps in again.values()) - event_ns) / 1e9


def report(results: Results) -> None:
    """Smallest, median and largest time, and the ratio of the medians."""
    for name, row in results.items():
        print(f"\n{SCRIPTS[name].what}, four workers")
        for which, what in (
            ("kill_s", "from SIGKILL to the first step"),
            ("later_s", "the same, 15 s later"),
            ("start_s", "second start to the first step"),
        ):
            for mode, trials in row.items():
                times = _times(trials, which)
                spread = f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f} s" if times else "never"
                count = f" ({len(times)} of {len(trials)})" if len(times) < len(trials) else ""
                share = (
                    f" = {ratio} of torchrun's" if (ratio := _share(row, mode, which)) and mode != "torchrun" else ""
                )
                print(f"  {what:31} {mode:9} {spread}{count}{share}")


def table(results: Results) -> str:
    """For the docs: the headline with both of its scripts, then the frameworks."""
    head = ["", "torchrun", "flowdist", "flowdist / torchrun", "in place", "in place / torchrun"]
    rows = []
    for which, what in (
        ("kill_s", "a worker is killed in the first second"),
        ("later_s", "a worker is killed 15 s later"),
        ("start_s", "the same command is started again"),
    ):
        for name in [*HEADLINE, *(name for name in SCRIPTS if name not in HEADLINE)]:
            if any(_times(trials, which) for trials in results.get(name, {}).values()):
                rows.append(f"| {what}: {SCRIPTS[name].what} | {' | '.join(_cells(results[name], which))} |")
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _cells(row: dict[str, list[Trial]], which: str) -> list[str]:
    def time_of(mode: str) -> str:
        times = _times(row.get(mode, []), which)
        return f"{statistics.median(times):.2f} s" if times else ("never" if row.get(mode) else "")

    if which == "start_s":  # a worker that starts is in no place yet
        return [time_of("torchrun"), time_of("flowdist"), _share(row, "flowdist", which), "", ""]
    ours = [text for mode in ("flowdist", "in-place") for text in (time_of(mode), _share(row, mode, which))]
    return [time_of("torchrun"), *ours]


def _times(trials: list[Trial], which: str) -> list[float]:
    return [time_s for trial in trials if (time_s := getattr(trial, which)) is not None]


def _share(row: dict[str, list[Trial]], mode: str, which: str) -> str:
    ours, theirs = (_times(row.get(name, []), which) for name in (mode, "torchrun"))
    return f"{statistics.median(ours) / statistics.median(theirs):.3f}" if ours and theirs else ""


def _seconds(time_s: float | None) -> str:
    return "never" if time_s is None else f"{time_s:.3f} s"
