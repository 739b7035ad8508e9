"""Three witnesses: `make witnesses`, or `python -m tests.witnesses [--pairs 60] [--seed 1] [--only 17]`.

Random pairs of a topology and a plan of faults are run on real processes, simulated after calibration, and replayed
from the journal. All three have to tell the same: the same decisions in the same order, but for ties (`decisions`), and
the same time in each bucket, but for the noise of two real runs (`judge`). Times beyond it have to be so twice: a busy
machine delays a run once. Each pair is played in a process and a folder of its own. The exit code is 1 if witnesses
disagree; each disagreement is shown with both stories and a command that plays the pair again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.witnesses.judge import Verdict, beyond, noise_of, play
from tests.witnesses.pairs import draw

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0  # for one pair


def main() -> int:
    options = _options()
    if options.play is not None:
        verdict = play(draw(options.seed, options.play), options.keep)
        (options.keep / "verdict.json").write_bytes(msgspec.json.encode(verdict))
        return 0
    numbers = options.only or range(1, options.pairs + 1)
    with tempfile.TemporaryDirectory(prefix="witnesses-", ignore_cleanup_errors=True) as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                verdicts = list(pool.map(lambda number: _told(options.seed, number, folder / str(number)), numbers))
            except KeyboardInterrupt:  # those that run end by themselves
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        noise = noise_of(verdicts)
        for at, verdict in enumerate(verdicts):
            if not verdict.differs and any(beyond(verdict, noise)):
                print(f"{verdict.number:3}  its times are beyond the noise: it is played again, alone")
                verdicts[at] = _told(options.seed, verdict.number, folder / f"{verdict.number}-again")
    return _summed_up(options.seed, verdicts)


def _told(seed: int, number: int, folder: Path) -> Verdict:
    """Play a pair, and print what was decided as soon as it is over."""
    verdict, pair = _played(seed, number, folder), draw(seed, number)
    print(
        f"{number:3} {verdict.took_s:4.0f} s  {verdict.decisions:3} decisions  {verdict.word}  {' '.join(pair.faults)}"
    )
    for text in verdict.differs:
        print(f"{text}\n    again: {pair.again}")
    sys.stdout.flush()
    return verdict


def _played(seed: int, number: int, folder: Path) -> Verdict:
    """Play a pair in a process of its own. That it does not end is a difference, too."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.witnesses",
        "--seed",
        str(seed),
        "--play",
        str(number),
        "--keep",
        str(folder),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # runs of flowdist end in order
            said = f"not over after {LIMIT_S:g} s; {process.communicate()[0]}"
    if process.returncode:
        return Verdict(number, differs=[f"    {said[-3000:]}"])
    return msgspec.json.decode((folder / "verdict.json").read_bytes(), type=Verdict)


def _summed_up(seed: int, verdicts: Sequence[Verdict]) -> int:
    """Print which times are beyond the noise, and how many pairs have no difference; return the exit code."""
    noise = noise_of(verdicts)
    texts = {verdict.number: list(beyond(verdict, noise)) for verdict in verdicts}
    for number, found in texts.items():
        for text in found:
            print(f"{number:3}  TIMES DIFFER  {text}; again: {draw(seed, number).again}")
    shown = ", ".join(f"{bucket} {ns / 1e9:.2f} s" for bucket, ns in sorted(noise.items()))
    print(f"two real runs differ by at most: {shown}")
    races, varied = sum(verdict.is_race for verdict in verdicts), sum(verdict.varied > 0 for verdict in verdicts)
    print(f"ties: two real runs decide {races} pairs differently; {varied} were simulated with other times, too")
    same = sum(not verdict.differs and not texts[verdict.number] for verdict in verdicts)
    print(f"{same} of {len(verdicts)} pairs: all witnesses say the same")
    return int(same < len(verdicts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.witnesses", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=60, help="how many (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="other pairs (default: 1)")
    parser.add_argument("--only", type=int, action="append", help="play the pair of this number; may be given again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pairs at once (%(default)s)")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    parser.add_argument("--play", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
