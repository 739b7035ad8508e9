"""How well the simulator predicts real runs that it has not seen: stories of several roles, and checkpoint intervals.

    python benchmarks/prediction.py [--stories 1,2,...] [--intervals 5,10,50,100] [--keep DIR] [--write-docs]

Two runs calibrate the simulator: one in which nothing happens, and one in which a node is killed and returns. Then each
story, and the same job with each interval between checkpoints, is predicted from its faults alone, and run on real
processes of this machine. Printed beside each other: the time to the next step of each incident, the lost work of each
role, the total, and the decisions.

A prediction holds if each time to the next step and each lost work is within 20 % or 0.3 s, the total within 5 % (of
checkpoint intervals 10 %), and all decisions are the same. Exit code 0 if all hold, 1 if not. If programs that are not
part of a run used more than a quarter of a core during it, the machine was noisy, and the exit code is 3: no verdict.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from sections import write_section

from flowdist.faults.files import parse_plan
from flowdist.graph import format_duration
from flowdist.record.journal import Header
from flowdist.record.reader import JOURNAL, WholeRecord, read_whole_lines
from flowdist.sim.calibration.calibration import Calibration, calibrate
from flowdist.sim.calibration.fit import rounded
from flowdist.sim.calibration.observe import observe
from flowdist.sim.experiment.compare import Comparison, Figure
from flowdist.sim.experiment.predict import predict
from flowdist.text.printable import table

TOPOLOGY = """
from flowdist import Node, Restart, Topology, Workload

def topology(steps: int = 240, every: int = 20) -> Topology:
    t = Topology("prediction", nodes=3 * [Node(cpu=2)])
    ps = t.role(
        "ps", ["python", "ps.py"], kind="service", cpu=0.25, ports=["rpc"], ready_when="tcp:rpc",
        restart=Restart("replica", max_restarts=9, backoff="0s"),
    )
    trainer = t.role(
        "trainer", ["python", "train.py", str(steps), str(every)], replicas="2:3", cpu=1.25, preload=["modules"],
        cooldown="1s", depends_on=[ps.ready(on_restart="reconnect")],
        restart=Restart("role", max_restarts=9, backoff="0s"),
        workload=Workload(steps=steps),
    )
    t.role(
        "evaluator", ["python", "evaluate.py"], cpu=0.25, primary=False, depends_on=[trainer.started()],
        restart=Restart("replica", max_restarts=9, backoff="0s"), workload=Workload(steps=100_000),
    )
    return t
"""
MODULES = """
import time
time.sleep(1.5)  # as large a framework as that
"""
TRAIN = """
import sys, time
import modules
from flowdist import worker

steps, every = map(int, sys.argv[1:])
time.sleep(0.4)  # model, data
me, met = worker.info(), worker.checkpoint_dir() / "met"

def meet(step):  # as the ranks of a gang do in each collective
    met.mkdir(parents=True, exist_ok=True)
    (met / f"{me.generation}-{step}-{me.rank}").touch()
    while not all((met / f"{me.generation}-{step}-{rank}").exists() for rank in range(me.world_size)):
        time.sleep(0.005)

meet(0)  # the process group
latest, begin = worker.latest(), 0
if latest is not None:
    with worker.restoring():
        begin = int(latest.name.partition("-")[0])
        time.sleep(0.2)
for step in range(begin + 1, steps + 1):
    time.sleep(0.05)
    worker.progress(step)
    if step % every == 0:
        with worker.saving():
            time.sleep(0.25)
            if me.rank == 0:
                path = worker.checkpoint_dir() / f"{step}-{me.generation}"
                path.touch()
                worker.commit(path, step=step)
            meet(step)
time.sleep(0.3)  # the last evaluation
"""
PS = """
import os, socket
server = socket.create_server(("127.0.0.1", int(os.environ["FLOWDIST_PORT_RPC"])))
while True:
    server.accept()[0].close()
"""
EVALUATE = """
import time
from flowdist import worker
step = 0
while True:
    time.sleep(0.2)
    step += 1
    worker.progress(step)
"""
FILES = {"topology.py": TOPOLOGY, "modules.py": MODULES, "train.py": TRAIN, "ps.py": PS, "evaluate.py": EVALUATE}
# Faults wait for checkpoints, which workers report at once; steps are reported twice a second.
CALIBRATIONS = {"undisturbed": (), "a node is killed": ("node2@checkpoint=trainer,4+400ms/3s",)}
STORIES = {
    "1": ("a trainer is killed", ("trainer/1@checkpoint=trainer,5+600ms",)),
    "2": (
        "a trainer is killed twice",
        ("trainer/0@checkpoint=trainer,3+200ms", "trainer/2@checkpoint=trainer,8+700ms"),
    ),
    "3": ("the server is killed", ("ps/0@checkpoint=trainer,4+300ms",)),
    "4": (
        "a trainer fails, then the server",
        ("trainer/2@checkpoint=trainer,2+500ms:exit=3", "ps/0@checkpoint=trainer,7+100ms"),
    ),
    "5": ("a node is lost for good", ("node1@checkpoint=trainer,6+400ms",)),
    "6": (
        "a trainer and the evaluator",
        ("evaluator/0@checkpoint=trainer,3+0s", "trainer/1@checkpoint=trainer,7+800ms"),
    ),
}
INTERVALS = (5, 10, 40, 80)  # steps between checkpoints; 20 in the runs that calibrate
INTERVAL_FAULT = "trainer/1@step=trainer,153"
CLOSE, CLOSE_NS = 0.2, 300_000_000
TOTAL, TOTAL_OF_INTERVALS = 0.05, 0.1
NOISE_MAX = 0.25  # of a core


class Ran(NamedTuple):
    """A real run, and how many cores programs outside it used meanwhile."""

    run: WholeRecord
    others: float


def main() -> None:
    options = _options()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="prediction-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    ran = {name: _run(folder, name, faults) for name, faults in CALIBRATIONS.items()}
    calibration = calibrate([observe(one.run.header, one.run.lines) for one in ran.values()])
    rows: list[tuple[str, ...]] = [("story", "figure", "real", "predicted", "error", "")]
    verdicts = []
    for number in options.stories:
        name, faults = STORIES[number]
        ran[name] = _run(folder, name, faults)
        verdicts.append(_judge(rows, name, predict(ran[name].run, calibration, parse_plan(faults)), TOTAL))
    for steps in options.intervals:
        name = f"a checkpoint every {steps} steps"
        ran[name] = _run(folder, name, (INTERVAL_FAULT,), f"every={steps}")
        found = predict(ran[name].run, _with_interval(calibration, steps), parse_plan([INTERVAL_FAULT]))
        verdicts.append(_judge(rows, name, found, TOTAL_OF_INTERVALS, is_total_alone=True))
    text = "\n".join(table(rows))
    print(text)
    noisy = {name: one.others for name, one in ran.items() if one.others > NOISE_MAX}
    verdict = _verdict(sum(verdicts), len(verdicts), noisy)
    print(verdict)
    if options.write_docs:
        write_section("prediction", f"```\n{text}\n```\n\n{verdict}")
    sys.exit(3 if noisy else 0 if all(verdicts) else 1)


def _verdict(held: int, count: int, noisy: dict[str, float]) -> str:
    held_text = f"{held} of {count} predictions hold."
    if not noisy:
        return held_text
    worst = max(noisy, key=lambda name: noisy[name])
    return (
        f"The machine was noisy, so this is no verdict ({held_text.rstrip('.')}): other programs used more than"
        f" {NOISE_MAX} cores during {len(noisy)} runs, most during '{worst}' ({noisy[worst]:.1f} cores)."
    )


def _judge(
    rows: list[tuple[str, ...]], name: str, found: Comparison, total: float, *, is_total_alone: bool = False
) -> bool:
    """Add the rows of one prediction, and return whether it holds."""
    lasted, *others = found.figures
    figures = [(lasted, lasted.is_within(total))]
    figures += [(each, is_total_alone or each.is_within(CLOSE, CLOSE_NS)) for each in others]
    for figure, is_within in figures:
        rows.append((name, figure.what, *_texts(figure), "" if is_within else "MISS"))
    for text in found.differences:
        rows.append((name, "decision", text, "", "", "MISS"))
    return all(is_within for _, is_within in figures) and (is_total_alone or not found.differences)


def _texts(figure: Figure) -> tuple[str, str, str]:
    real, predicted = (format_duration(rounded(ns)) for ns in (figure.real_ns, figure.predicted_ns))
    return real, predicted, "-" if figure.error is None else f"{100 * figure.error:.1f} %"


def _with_interval(calibration: Calibration, steps: int) -> Calibration:
    """Return the calibration with another number of steps between checkpoints."""
    times = calibration.roles["trainer"]
    fields = {**times.fields, "checkpoint_every_ns": steps * times.fields["step_ns"]}
    return calibration._replace(roles={**calibration.roles, "trainer": times._replace(fields=fields)})


def _run(folder: Path, name: str, faults: tuple[str, ...], *params: str) -> Ran:
    """Run the job with these faults on real processes, and return its record."""
    base = folder / "runs" / name.replace(" ", "-")
    words = [word for fault in faults for word in ("--fail", fault)]
    words += [word for param in params for word in ("-p", param)]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    busy, own = _busy_s(), _own_s()
    since = time.monotonic()
    command = [sys.executable, "-m", "flowdist", "run", "topology.py", "--quiet", "--runs", str(base), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the run ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    others = max(0.0, _busy_s() - busy - (_own_s() - own)) / (time.monotonic() - since)
    (journal,) = base.glob(f"prediction-*/{JOURNAL}")
    lines = read_whole_lines(journal.read_bytes(), str(journal))[0]
    header = lines[0]
    assert isinstance(header, Header)
    print(f"ran: {name}; other programs used {others:.2f} cores", file=sys.stderr, flush=True)
    return Ran(WholeRecord(name, header, lines[1:]), others)


def _busy_s() -> float:
    """Return the CPU seconds that the machine has spent on anything so far."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the CPU seconds that this process and the children that it has waited for have spent so far."""
    times = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in times)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=lambda text: text.split(",") if text else [], default=list(STORIES))
    numbers = lambda text: list(map(int, text.split(","))) if text else []  # noqa: E731
    parser.add_argument("--intervals", type=numbers, default=list(INTERVALS))
    parser.add_argument("--keep", type=Path, help="Keep the runs in this folder.")
    parser.add_argument("--write-docs", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
