"""Records on the command line: a journal.jsonl, a trace, the folder of a run, or its name in `runs/`."""

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
    """Return the file of the record that a command line names.

    Args:
        name: A file, the folder of a run, or a run in `runs/`: its name, the beginning of its name, or `latest`.

    Raises:
        FlowdistError: There is no such file.
    """
    path = Path(name)
    if not path.exists() and os.sep not in name:
        from flowdist.runtime.run_folder.folder import run_of_prefix  # the runtime: not needed for a path

        path = RUNS / name if (RUNS / name).is_dir() else run_of_prefix(RUNS, name) or path
    if path.is_dir():
        from flowdist.runtime.run_folder.access import refuse_private  # the runtime: not needed for a file

        refuse_private(path)
        path /= JOURNAL
        if not path.is_file():
            raise FlowdistError(f"{name} is not a folder of a run: it has no {JOURNAL}", help=HELP)
    if not path.is_file():
        what = "no run in runs/ yet" if name in ("latest", "runs/latest") else f"no file {name!r}"
        raise FlowdistError(f"there is {what}", help=HELP)
    return path


def read_journal(path: Path) -> tuple[Header, list[Line], list[bytes]]:
    """Read a record, and return its header, its other lines, and the bytes of each line, the header's included.

    A last line that a crash has cut off is left out.

    Raises:
        FlowdistError: The file is not a journal; the message has the first wrong line.
    """
    raw: list[bytes] = []
    header, lines = stream_journal(path, raw)
    return header, list(lines), raw


def stream_journal(path: Path, raw: list[bytes] | None = None) -> tuple[Header, Iterator[Line]]:
    """Return header and lines as `read_journal`, but read line by line: a journal of days may be larger than memory.

    Args:
        path: The file.
        raw: List to which the bytes of each line are added as it is read; None: they are not kept.

    Raises:
        FlowdistError: As `read_journal`; for lines after the header, when they are read.
    """
    lines = _in_order(path, _decoded(path, raw))
    header = next(lines, None)
    if not isinstance(header, Header):
        raise FlowdistError(f"{path} has no header", help=HELP)
    return header, lines


def refuse_macro(header: Header, name: str) -> None:
    """Refuse a trace of macro mode, which has no events for a controller.

    Raises:
        FlowdistError: The trace is of macro mode; `name` is what the user called it.
    """
    if header.options.get("fidelity") == "macro":
        help = "simulate without --macro, or compare two such traces: flowdist diff"
        raise FlowdistError(f"{name} is a trace of macro mode, which has no events for a controller", help=help)


def _decoded(path: Path, raw: list[bytes] | None) -> Iterator[Line]:
    """Yield the lines of a record's file; add their bytes to `raw` if it is a list.

    Raises:
        FlowdistError: The file cannot be read, or a line is none of a journal.
    """
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
        raise FlowdistError(f"{path} is not a journal: line {number}: {text}", help=HELP) from None


def _in_order(path: Path, lines: Iterator[Line]) -> Iterator[Line]:
    """Yield the lines unchanged, and raise FlowdistError where an edited record is out of order."""
    now, n = 0, 0
    for number, line in enumerate(lines):
        if isinstance(line, Header) and number:
            raise FlowdistError(f"{path} has a second header, after event {n}: two records in one file?", help=HELP)
        if isinstance(line, Record):
            if line.n != n + 1:
                raise FlowdistError(f"{path}: event {line.n} follows event {n}", help="lines are missing or were added")
            if line.t_ns < now:
                raise FlowdistError(f"{path}: time runs backwards at event {line.n}", help="its lines were reordered")
            n, now = line.n, line.t_ns
        yield line
