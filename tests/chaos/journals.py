"""Journals that were damaged while nothing ran: a run is resumed from what is whole, or refused with the line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.chaos.job import expect, expect_end, expect_result, last_line, read_in_background, write_job
from tests.chaos.row import Row
from tests.runtime.harness import Deaths, Job

Damage = Callable[[list[bytes]], list[bytes]]


def damaged(damage: Damage) -> Callable[[Path], str]:
    """Return the function that kills a run, damages its journal, and resumes it, with `--truncate-at` as advised."""

    def play(folder: Path) -> str:
        run_dir = killed_run(folder)
        journal = run_dir / "journal.jsonl"
        bad = b"".join(damage(journal.read_bytes().splitlines(keepends=True)))
        journal.write_bytes(bad)
        with Job(folder, "--resume", "latest") as refused:
            expect_end(refused, 2)
            expect("journal.jsonl:" in refused.text, f"no line is named: {last_line(refused)}")
            advised = re.search(r"--truncate-at (\d+)", refused.text)
            expect(advised, f"--truncate-at is not advised: {last_line(refused)}")
        word = advised[1] if advised else ""
        with Job(folder, "--resume", "latest", "--truncate-at", word) as resumed:
            expect_end(resumed)
        expect_result(folder)
        kept = [path for path in run_dir.glob("journal*") if path != journal and path.read_bytes() == bad]
        expect(kept, "the original was not kept")
        return (
            f"refused at line {word}; with `--truncate-at {word}` the job succeeds, and {kept[0].name} has the original"
        )

    return play


def torn(folder: Path) -> str:
    """Cut the last line of the journal of a killed run in half, as a crash of the machine does."""
    journal = killed_run(folder) / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    with Job(folder, "--resume", "latest") as resumed:
        expect_end(resumed)
    expect_result(folder)
    return "resumed without the last line; the job succeeds"


def killed_run(folder: Path) -> Path:
    """Start the job, kill all of it in the middle, and return the folder of the run."""
    write_job(folder)
    with Job(folder) as job:
        job.until("at step 60")
        job.process.kill()
        reader = read_in_background(job)
        with Deaths(job.alive()) as deaths:
            expect(deaths.survivors() == [], "processes outlive the run")
        reader.join()
        return job.run_dir


def flipped(lines: list[bytes]) -> list[bytes]:
    middle = len(lines) // 2
    line = bytearray(lines[middle])
    line[len(line) // 2] ^= 0x01
    return [*lines[:middle], bytes(line), *lines[middle + 1 :]]


def doubled(lines: list[bytes]) -> list[bytes]:
    middle = len(lines) // 2
    return [*lines[: middle + 1], lines[middle], *lines[middle + 1 :]]


def of_another_run(lines: list[bytes]) -> list[bytes]:
    middle = len(lines) // 2
    other = lines[middle].replace(b"trainer", b"learner") if b"trainer" in lines[middle] else lines[1]
    return [*lines[:middle], other, *lines[middle:]]


def without_one(lines: list[bytes]) -> list[bytes]:
    middle = len(lines) // 2
    return lines[:middle] + lines[middle + 1 :]


def format_9(folder: Path) -> str:
    """Give the journal of a killed run a format that this version does not know."""
    journal = killed_run(folder) / "journal.jsonl"
    header, *rest = journal.read_bytes().splitlines(keepends=True)
    changed = json.loads(header) | {"format": 9}
    journal.write_bytes(json.dumps(changed).encode() + b"\n" + b"".join(rest))
    with Job(folder, "--resume", "latest") as refused:
        expect_end(refused, 2)
        expect("its format is 9" in refused.text, last_line(refused))
        return f"exit code 2: {last_line(refused).strip()[:100]}"


OFFERED = "`--resume` names the line and offers `--truncate-at`, which keeps the original, and the job succeeds"
ROWS = [
    Row("journal-byte", "one bit of the journal of a killed run is flipped", OFFERED, damaged(flipped)),
    Row("journal-doubled", "a line of the journal is doubled", OFFERED, damaged(doubled)),
    Row("journal-foreign", "the journal has a line of another run", OFFERED, damaged(of_another_run)),
    Row("journal-missing", "a line of the journal is missing", OFFERED, damaged(without_one)),
    Row(
        "journal-torn",
        "the last line of the journal is cut off",
        "the run is resumed without it, and the job succeeds",
        torn,
    ),
    Row(
        "journal-format",
        "the journal has a format that this version does not know",
        "`--resume` is refused, with the format",
        format_9,
    ),
]
