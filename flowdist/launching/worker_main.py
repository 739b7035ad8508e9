"""The program of a worker of `flowdist.launch`: `python -m flowdist.launching.worker_main FOLDER`.

It calls the function that the caller has pickled, and writes what the function returned or raised into its folder.
Standard library only.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.runtime.atomic import write_atomically
from flowdist.worker.process_groups import end_at_exit

CALL = "call.pickle"  # in the folder of the run
RESULT = "result.pickle"  # in the folder of the worker


class Result(NamedTuple):
    """The end of a call: what the function has returned or raised."""

    packed: bytes | None  # the value or the exception; None: the exception cannot be pickled
    error: str = ""  # the exception in one line
    raised: str = ""  # its traceback; empty: the function has returned


def main(folder: Path) -> None:
    """Make the call saved in the folder of the run, and write its result into the worker's `folder`.

    If the function has raised, its traceback goes to stderr and the exit code is 1.
    """
    result = _result_of(*pickle.loads((folder.parents[3] / CALL).read_bytes()))
    write_atomically(folder / RESULT, pickle.dumps(tuple(result)))
    if result.raised:
        sys.stderr.write(result.raised)
        sys.exit(1)
    end_at_exit()


def _result_of(packed: bytes, prepare: dict[str, Any]) -> Result:
    """Make a pickled call, after multiprocessing.spawn.prepare with its settings, and return how it ended.

    A SystemExit of the function passes through. One of the import of the user's script is returned.
    """
    try:
        spawn.prepare(prepare)  # a script is imported as __mp_main__, so that its functions are found
        function, args, kwargs, setup = pickle.loads(packed)
    except BaseException as error:
        return _of_exception(error, frames=1)
    try:
        return Result(_call(function, args, kwargs, setup))
    except Exception as error:
        return _of_exception(error, frames=2)


def _call(function: Callable[..., Any], args: Any, kwargs: Any, setup: Callable[[], Any] | None) -> bytes:
    if setup is not None:
        setup()
    value = function(*args, **kwargs)
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"the function returned a {type(value).__name__}, which cannot be pickled: {error}") from None


def _of_exception(error: BaseException, frames: int) -> Result:
    """Return the result of a call that raised. So many of the outermost `frames` are flowdist's, and left out."""
    trace = error.__traceback__
    for _ in range(frames):
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)  # an exception whose __init__ wants more than its args cannot come back
    except Exception:
        packed = None
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    return Result(packed, message, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
