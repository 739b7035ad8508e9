"""How a record is named on the command line: journal.jsonl, a trace, the folder of a run, or its name in `runs/`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flowdist.errors import FlowdistError
from flowdist.record.journal import Header, Line, Record, UnknownFormat, decode_lines

JOURNAL = "journal.jsonl"
RUNS = Path("runs")
HELP = f"name a run in {RUNS}/, its folder, its {JOURNAL}, or a file of simulate --trace"


def find_record(name: str) -> Path:
    """The file that is meant: by its path, or of a run in `runs/` by its name; FlowdistError if there is none."""
    path = Path(name)
    if not path.exists() and os.sep not in name:
        from flowdist.runtime.run_folder.folder import run_of_prefix  # the runtime: what is a path does without

        path = RUNS / name if (RUNS / name).is_dir() else run_of_prefix(RUNS, name) or path
    if path.is_dir():
        path /= JOURNAL
        if not path.is_file():
            raise FlowdistError(f"{name} is no folder of a run: it has no {JOURNAL}", help=HELP)
    if not path.is_file():
        what = "no run in runs/ yet" if name in ("latest", "runs/latest") else f"no file {name!r}"
        raise FlowdistError(f"there is {what}", help=HELP)
    return path


def read_journal(path: Path) -> tuple[Header, list[Line], list[bytes]]:
    """Header and lines, and the bytes of all. A last line that is cut off, as a crash leaves it, is left out.

    Raises:
        FlowdistError: for what is no journal, with the line that is none.
    """
    raw: list[bytes] = []
    header, lines = stream_journal(path, raw)
    return header, list(lines), raw


def stream_journal(path: Path, raw: list[bytes] | None = None) -> tuple[Header, Iterator[Line]]:
    """As `read_journal`, but the lines come one by one: a journal of days need not be in memory.

    Args:
        raw: The bytes of the lines are added to it, as they come.

    Raises:
        FlowdistError: as `read_journal`, when the wrong line comes.
    """
    lines = _in_order(path, _decoded(path, raw))
    header = next(lines, None)
    if not isinstance(header, Header):
        raise FlowdistError(f"{path} has no header", help=HELP)
    return header, lines


def refuse_macro(header: Header, name: str) -> None:
    """FlowdistError for what no controller can be fed with."""
    if header.options.get("fidelity") == "macro":
        help = "simulate without --macro, or compare two such traces: flowdist diff"
        raise FlowdistError(f"{name} is a trace of macro mode: nothing in it was said to a controller", help=help)


def _decoded(path: Path, raw: list[bytes] | None) -> Iterator[Line]:
    number = 0
    try:
        with path.open("rb") as file:
            for data in file:
                number += 1
                if not data.endswith(b"\n"):
                    return
                if raw is not None:
                    raw.append(data)
                yield from decode_lines([data])
    except OSError as error:
        raise FlowdistError(f"{path} cannot be read: {error.strerror}", help=HELP) from None
    except UnknownFormat as error:
        raise FlowdistError(f"{path} cannot be read: {error}", help=HELP) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = str(error) or type(error).__name__
        raise FlowdistError(f"{path} is no journal: line {number}: {text}", help=HELP) from None


def _in_order(path: Path, lines: Iterator[Line]) -> Iterator[Line]:
    """Whoever edits a record by hand is told where it went wrong."""
    now, n = 0, 0
    for number, line in enumerate(lines):
        if isinstance(line, Header) and number:
            raise FlowdistError(f"{path} has a second header, after event {n}: two records in one file?", help=HELP)
        if isinstance(line, Record):
            if line.n != n + 1:
                raise FlowdistError(f"{path}: event {line.n} follows event {n}", help="lines are missing, or too many")
            if line.t_ns < now:
                raise FlowdistError(f"{path}: time runs backwards at event {line.n}", help="its lines were reordered")
            n, now = line.n, line.t_ns
        yield line
