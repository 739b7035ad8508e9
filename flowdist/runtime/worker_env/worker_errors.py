"""The error of a failed worker: from its error file if it has written one, else from the end of its output."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from flowdist.runtime.left_files import clean, modified_ns, read_from, read_small
from flowdist.runtime.prefix.late import TOO_LATE
from flowdist.text.printable import printable, without_sequences, worker_line

OWN = f"{Path(__file__).parents[2]}/"  # where flowdist's modules are
TAIL_BYTES = 16 << 10
ERROR_BYTES_MAX = 256 << 10  # a larger error file is not read
ERROR_LINE_MAX = 2000  # characters
ABORT_BYTES, ABORT_LINES = 64 << 10, 500  # of stack traces, at most, after the line of NCCL that says why
OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")

# What torch's process groups write when they give up a collective for which a peer has not come.
COLLECTIVE_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout"  # NCCL; the process ends by SIGABRT
    r"|Timed out waiting \d+ms for (?:recv|send) operation"  # gloo
    r"|failed to pass monitoredBarrier in \d+ ms"
)

# Lines of tracebacks, before which torch may put the rank; and the frames in them that are not of the user's own code.
RANK = re.compile(r"^\[rank\d+\]: ?")
TRACEBACK = re.compile(r"^(?:\[rank\d+\]: ?)?Traceback \(most recent call last\):$")
CHAINED = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):$"
)
FRAME = re.compile(r'^(?:\[rank\d+\]: ?)?  File "')
LIBRARY = re.compile(
    r'  File "(?:<frozen |[^"]*/(?:site|dist)-packages/|[^"]*/lib(?:64)?/python3[.\d]*/|' + re.escape(OWN) + ")"
)

# Signals that a process gets for what it did itself, and the lines about it that libraries print, the most telling
# first: uncaught exceptions of C++, failed assertions, glibc's heap checks, glog and Rust, and Python's faulthandler.
OWN_FAULT = ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")
LAST_WORDS = (
    re.compile(r"what\(\): .+"),
    re.compile(
        r"Assertion .* failed|^F\d{4} |Check failed: |panicked at "
        r"|stack smashing detected|double free|corrupt|(?:malloc|calloc|realloc|free|munmap_chunk)\(\): "
        r"|bus error"
    ),
    re.compile(r"terminate called "),
    re.compile(r"Fatal Python error: "),
)


class WorkerError(NamedTuple):
    """The error of a worker, from its error file. Either text may be empty."""

    message: str
    traceback: str


def read_error_file(folder: Path) -> WorkerError | None:
    """Return the error in the file of torch's @record, which may have any content; None if there is no usable one."""
    data = read_small(folder / "error.json", ERROR_BYTES_MAX)
    if data is None:
        return None
    try:
        content = json.loads(data.decode(errors="replace"))
        message = content.get("message") if isinstance(content, dict) else None
        if isinstance(message, str):
            return WorkerError(clean(message), "")
        if not isinstance(message, dict):
            return None
        extra = message.get("extraInfo")
        traceback = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
        return WorkerError(clean(str(message.get("message", ""))), clean(str(traceback)))
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, or lists in lists without end
        return None


def raised_ns(folder: Path) -> int | None:
    """Return when the worker wrote the error file in its log folder, in ns since the epoch; None if there is none."""
    return modified_ns(folder / "error.json")


def last_lines(file: Path, count: int, tail_bytes: int = TAIL_BYTES) -> list[str]:
    """Return the last `count` non-blank lines in the last `tail_bytes` of a log, oldest first; none if unreadable."""
    lines = (read_from(file, -tail_bytes, tail_bytes) or b"").decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def lines_of_failure(file: Path, count: int) -> list[str]:
    """Return the `count` (3 or more) lines of a log that tell most about a failure: its last traceback, else its end.

    The last TAIL_BYTES are read. A traceback that is too long, with those that led to it, goes without frames of
    flowdist, installed packages and the standard library, then without lines in its middle; a line says how many.
    Control sequences are removed: with FORCE_COLOR, Python 3.13 colours frames.
    """
    lines = [without_sequences(line) for line in last_lines(file, TAIL_BYTES)]  # all of them: each has a byte
    begins = max((n for n, line in enumerate(lines) if TRACEBACK.search(line)), default=len(lines))
    while begins > 0 and CHAINED.search(lines[begins - 1]):
        begins = max((n for n, line in enumerate(lines[: begins - 1]) if TRACEBACK.search(line)), default=0)
    if len(lines) - begins <= count:
        return lines[-count:]
    kept = _without_libraries(lines[begins:])
    if len(kept) <= count:
        return kept
    half = (count - 1) // 2
    end = count - 1 - half
    return [*kept[:half], f"  ... ({len(kept) - count + 1} lines)", *kept[-end:]]


def _without_libraries(lines: list[str]) -> list[str]:
    """Return tracebacks without frames of libraries but the last, which raised; a line counts those left out."""
    kept: list[str] = []
    for is_of_library, pairs in groupby(zip(lines, _are_of_libraries(lines), strict=True), key=itemgetter(1)):
        texts = [line for line, _ in pairs]
        kept += [f"  ... ({len(texts)} lines)"] if is_of_library and len(texts) > 1 else texts
    return kept


def _are_of_libraries(lines: list[str]) -> list[bool]:
    """Return of each line of tracebacks whether it belongs to a frame of a library that is not the last one."""
    found, is_of_library = list[bool](), False
    for number, line in enumerate(lines):
        if FRAME.search(line):
            is_of_library = bool(LIBRARY.search(line)) and not _is_last_frame(lines, number)
        elif not _is_indented(line):
            is_of_library = False
        found.append(is_of_library)
    return found


def _is_last_frame(lines: list[str], number: int) -> bool:
    """Return whether the frame that begins at this line is the last one of its traceback."""
    ends = (line for line in lines[number + 1 :] if FRAME.search(line) or not _is_indented(line))
    return not FRAME.search(next(ends, ""))


def _is_indented(line: str) -> bool:
    return RANK.sub("", line, count=1).startswith("  ")


def error_line(folder: Path, mask: Callable[[str], str] = str, signal: str | None = None) -> str:
    """Return the error of a worker in one line, such as `ValueError: bad shape`; empty if it has left none.

    It is the first of the message in its error file, cut at ERROR_LINE_MAX, else the last of stderr, cut at 200. It is
    masked before the cut: a part of a secret would not be recognised. With a `signal` (without SIG) the last line of
    stderr need not be the cause: what a library has printed about the signal counts, if the worker was at fault.
    """
    error = read_error_file(folder)
    if error is not None:
        return _plain(next(iter(mask(error.message).splitlines()), ""))[:ERROR_LINE_MAX]
    if signal is None:
        lines = [line for line in last_lines(folder / "stderr.log", TAIL_BYTES) if TOO_LATE not in line][-1:]
    else:
        lines = _last_words(folder) if signal in OWN_FAULT else []
    return _plain(mask(lines[0])).strip()[:200] if lines else ""


def _last_words(folder: Path) -> list[str]:
    """Return the line of stderr that says most about the signal that has ended the worker; no line if none does."""
    lines = last_lines(folder / "stderr.log", ABORT_LINES, ABORT_BYTES)
    found = ([line for line in lines if sign.search(line)][-1:] for sign in LAST_WORDS)
    return next((line for line in found if line), [])


def _plain(line: str) -> str:
    return printable(worker_line(line, colours=False))


def collective_timeout(folder: Path, mask: Callable[[str], str] = str, *, aborted: bool = False) -> str:
    """Return in one line what the process group wrote when it gave up a collective; empty if it did not.

    Only the error that the worker ended with counts: its error file, or the last line of stderr. A worker that NCCL
    aborted (SIGABRT) has no error file, and stack traces after that line. The text is masked before it is cut.
    """
    error = read_error_file(folder)
    if error is not None:
        lines = [error.message]
    else:
        lines = last_lines(folder / "stderr.log", ABORT_LINES if aborted else 1, ABORT_BYTES)
    for line in map(mask, lines):
        found = COLLECTIVE_TIMEOUT.search(line)
        if found is not None:
            return _plain(line[found.start() :].splitlines()[0])[:200]
    return ""


def is_out_of_memory(line: str) -> bool:
    """Return whether a line of `error_line` begins with the name of an out-of-memory error, of the host or of a GPU."""
    return line.split(":")[0].rpartition(".")[2].strip() in OUT_OF_MEMORY


def oom_kills() -> int:
    """Return the kernel's count of kills for memory, of this control group, else of the machine; 0 if unknown."""
    for file in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
