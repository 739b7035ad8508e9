"""Records on the command line: a journal.jsonl, a trace, the folder of a run, or its name in `runs/`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from flowdist.cli.shared.common import fail
from flowdist.errors import FlowdistError
from flowdist.record.journal import Header, Line, Record
from flowdist.record.reader import JOURNAL, BadLine, RecordReader
from flowdist.record.replay import Replay
from flowdist.runtime.run_folder.access import refuse_private
from flowdist.runtime.run_folder.folder import run_by_prefix, run_of_prefix
from flowdist.runtime.run_folder.resume import truncate_help
from flowdist.runtime.run_folder.runs import state_of

T = TypeVar("T")
RUNS = Path("runs")
FILE_SUFFIXES = (".jsonl", ".json", ".py", ".toml", ".txt", ".gz")  # a name that ends so is meant as a file, no run
HELP = f"name a run in {RUNS}/, its folder, its {JOURNAL}, or a file of simulate --trace"


def find_record(name: str) -> Path:
    """Return the file of the record of this name: of a file, the folder of a run, or a run in `runs/`."""
    path = _path_of(name)
    if path.is_dir():
        refuse_private(path)
        path /= JOURNAL
        if not path.is_file():
            raise FlowdistError(f"{name} is not a folder of a run: it has no {JOURNAL}", help=HELP)
    if not path.is_file():
        raise FlowdistError(f"there is no file {name!r}", help=HELP)
    return path


def _path_of(name: str) -> Path:
    """Return the file, the folder or the run that a name means; a path to nothing if it can only mean a file."""
    path = Path(name)
    name = "latest" if path == RUNS / "latest" else name
    if path.exists() or os.sep in name:
        return path
    if (RUNS / name).is_dir():
        return RUNS / name

    if path.suffix in FILE_SUFFIXES:
        return run_of_prefix(RUNS, name) or path
    return run_by_prefix(RUNS, name, HELP)


def is_record(name: str) -> bool:
    """Return whether a file, a folder or a run has this name, or a run's name begins with it."""
    return Path(name).exists() or (RUNS / name).is_dir() or run_of_prefix(RUNS, name) is not None


class RecordFile:
    """A journal or trace, which is read line by line: a journal of days may be larger than memory.

    Iterating yields the lines up to the first that cannot be used, which is then `bad`: call `finish` when all before
    it has been shown. A last line that a crash has cut off is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad: BadLine | None = None
        try:
            with path.open("rb") as file:
                first = file.readline()
        except OSError as error:
            raise FlowdistError(f"{path} cannot be read: {error.strerror}", help=HELP) from None
        self._reader, self._size = RecordReader(str(path)), len(first)
        if not first.endswith(b"\n"):
            raise self._reader.error("the file has no header")
        header = self._reader.read(first)
        assert isinstance(header, Header)
        self.header = header

    def __iter__(self) -> Iterator[Line]:
        with self.path.open("rb") as file:
            file.seek(self._size)
            for data in file:
                if not data.endswith(b"\n"):
                    return
                try:
                    line = self._reader.read(data)
                except BadLine as bad:
                    self.bad = bad
                    return
                yield line

    def whole(self) -> list[Line]:
        """Return all lines after the header, for a verb that needs the whole record."""
        lines = list(self)
        if self.bad is not None:
            raise self.bad.with_help(help_for(self.bad, self.path))
        return lines

    def finish(self) -> None:
        """Exit with 2 if there is a bad line, with its error on stderr: stdout may have its one JSON object already."""
        if self.bad is not None:
            fail(self.bad.with_help(help_for(self.bad, self.path)))


def open_record(name: str) -> RecordFile:
    """Return the record that a command line names."""
    record = RecordFile(find_record(name))
    refuse_macro(record.header, name)
    return record


def help_for(bad: BadLine, path: Path) -> str:
    """Return what to do about a line of the record that cannot be used: go on from before it if its run has died."""
    is_of_run = path.name == JOURNAL and (path.parent / "graph.json").is_file()
    if is_of_run and bad.number > 1 and state_of(path.parent).state == "died":
        return truncate_help(path.parent.resolve(), bad.number)
    return bad.help


def made_of(record: RecordFile, make: Callable[[Iterable[Line]], T]) -> T:
    """Return what `make` makes of the lines, up to the first that cannot be used or replayed, which `bad` then names.

    The caller has to call `finish` of the record in the end.
    """
    try:
        return make(record)
    except BadLine as bad:  # the line has left a state of no moment: take only those before it
        record.bad = bad
        return make(islice(RecordFile(record.path), bad.number - 2))


def replay_of(path: Path) -> tuple[RecordFile, Replay, list[Line]]:
    """Return the record, its replay, and the lines that are no events; all up to the first bad line: see `made_of`."""
    record = RecordFile(path)

    def replayed(lines: Iterable[Line]) -> tuple[Replay, list[Line]]:
        replay, others = Replay(record.header, strict=True, source=str(path)), list[Line]()
        for line in lines:
            replay.hear(line)
            if not isinstance(line, Record):
                others.append(line)
        return replay, others

    return record, *made_of(record, replayed)


def refuse_macro(header: Header, name: str) -> None:
    """Refuse a trace of macro mode, which has no events for a controller."""
    if header.options.get("fidelity") == "macro":
        help = "simulate without --macro, or compare two such traces: flowdist diff"
        raise FlowdistError(f"{name} is a trace of macro mode, which has no events for a controller", help=help)
