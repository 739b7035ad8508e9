"""`python -m flowdist.launching.worker_main FOLDER`: a worker of `flowdist.launch`. Standard library only.

It calls the function that the parent has pickled, and leaves in its folder what that returned or raised.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flowdist.runtime.atomic import write_atomically
from flowdist.worker.process_groups import end_at_exit

CALL = "call.pickle"  # in the folder of the run
RESULT = "result.pickle"  # in the folder of the worker


class Call(NamedTuple):
    """What to call, and what has to be there before it can be unpickled. `packed` is a pickle of function, arguments
    and setup; `prepare` is what multiprocessing passes to a child that it spawns: sys.path, sys.argv, the script."""

    packed: bytes
    prepare: dict[str, Any]


class Result(NamedTuple):
    """`packed` is a pickle of the value, or of the exception, None when that has none. `raised` is the traceback."""

    packed: bytes | None
    error: str = ""
    raised: str = ""


def main(folder: Path) -> None:
    call: Call = Call(*pickle.loads((folder.parents[3] / CALL).read_bytes()))
    try:
        spawn.prepare(call.prepare)  # a script is imported as __mp_main__, so that its functions are found
        function, args, kwargs, setup = pickle.loads(call.packed)
    except BaseException as error:
        _fail(folder, _of_exception(error, frames=1))
    try:
        result = Result(_call(function, args, kwargs, setup))
    except Exception as error:
        _fail(folder, _of_exception(error, frames=2))
    _leave(folder, result)
    end_at_exit()


def _call(function: Callable[..., Any], args: Any, kwargs: Any, setup: Callable[[], Any] | None) -> bytes:
    if setup is not None:
        setup()
    value = function(*args, **kwargs)
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"it returned a {type(value).__name__}, which cannot be pickled: {error}") from None


def _of_exception(error: BaseException, frames: int) -> Result:
    """Without the innermost `frames` of ours."""
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


def _fail(folder: Path, result: Result) -> NoReturn:
    """Our own frames are of no use to anybody, in the log either."""
    _leave(folder, result)
    sys.stderr.write(result.raised)
    sys.exit(1)


def _leave(folder: Path, result: Result) -> None:
    write_atomically(folder / RESULT, pickle.dumps(tuple(result)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
