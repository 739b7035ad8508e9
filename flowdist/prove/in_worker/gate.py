"""The worker's side of `flowdist prove`: it waits at the gate, is stopped at its file calls, and says what it does.

`prepare` is called in a worker at the split of its script, and has `recorder` watch. `enter` is called when the worker
is about to act, or takes its first step. It says who it is, waits until the run may begin, and installs the filter of
`calls`. Where the kernel refuses that, it asks before what Python changes, and says when it ends. Messages are JSON, a
line each.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from flowdist.prove import calls
from flowdist.prove.in_worker import recorder
from flowdist.prove.in_worker.onlooker import look_on
from flowdist.prove.in_worker.prover_link import Prover

NAMES = (
    *("FLOWDIST_ROLE", "FLOWDIST_GENERATION", "RANK", "WORLD_SIZE", "MASTER_PORT"),
    *("ROLE_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FLOWDIST_REPLICA", "FLOWDIST_RUN_ID"),
)


def prepare(where: str, come: Callable[[], None]) -> None:
    """Have this worker watched from now on.

    Args:
        where: The prover's socket and the folder whose files belong to the run, as `where_of` gives them.
        come: Makes the worker come to the gate, if it has to be there.
    """
    global _prover, _path, _folder
    _path, _folder = json.loads(where)
    _prover = Prover(come)
    recorder.watch(_prover, _folder)


def where_of(path: str, folder: str) -> str:
    """Return what `prepare` gets, for a prover that listens at a path."""
    return json.dumps([path, folder])


def enter(looked_at: list[str]) -> None:
    """Wait at the gate of the prover's socket until this worker may begin to act.

    `looked_at` are files that the script has looked at before.
    """
    assert _prover is not None
    try:
        _prover.connect(_path)
        told = _prover.ask(kind="hello", pid=os.getpid(), **{name: os.environ.get(name, "") for name in NAMES})
        os.environ.update(told["variables"])
        _prover.tells_steps = told["tells_steps"]
        if told["is_looked_at"]:
            look_on(_path, _folder)
        try:
            listener = calls.install()
        except calls.Unsupported as error:
            _prover.ask(kind="unsupported", why=error.strerror)
            _prover.is_coarse = True
            _note_hard_exits(_prover)
        else:
            _prover.send_listener(listener)
            os.close(listener)
        for each in looked_at:
            if each.startswith(_folder + "/"):
                _prover.tell(kind="looked", path=each)
        _prover.say_kept()
        _prover.ask_postponed()
        _note_exits()
    except (OSError, KeyError, ValueError) as error:
        print(f"flowdist prove: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def _note_exits() -> None:
    """Note the code with which the script calls sys.exit."""
    leaves = sys.exit

    def exit(status: str | int | None = None, /) -> NoReturn:
        _codes.append(status)
        leaves(status)

    sys.exit = exit


def _note_hard_exits(prover: Prover) -> None:
    """Have the worker say with which code it ends by os._exit, as `leave` does in the end."""
    ends = os._exit

    def exit(status: int) -> NoReturn:
        prover.ask(kind="end", code=status & 0xFF)
        ends(status)

    os._exit = exit


def _code() -> int:
    """Return the exit code of a script that has ended, as far as it can be known: 0 for a SystemExit that it raises."""
    if hasattr(sys, "last_value"):
        return 1
    last = _codes[-1] if _codes else None
    return last & 0xFF if isinstance(last, int) else int(last is not None)


def leave() -> None:
    """End this worker, whose script has ended well, at once; do nothing if it is not sure that it has.

    Its files are written out. What the interpreter would still do is to take all objects apart, which takes longer than
    a restart. A worker that the kernel does not stop at its end waits here.
    """
    if _prover is not None and _prover.is_coarse:
        _flush()
        _prover.ask(kind="end", code=_code())
        return
    if hasattr(sys, "last_value") or any(code not in (0, None) for code in _codes[-1:]) or _exits_otherwise(_folder):
        return
    _flush()
    os._exit(0)


def _flush() -> None:
    for each in gc.get_objects():  # those of the template are frozen: it has no file that is written
        if type(each) in _WRITERS and not each.closed:
            with contextlib.suppress(OSError, ValueError):
                each.flush()


def _exits_otherwise(folder: str) -> bool:
    """Return whether a module of the user may end the script with a code that `_codes` does not know."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.abspath(path).startswith(folder + "/"):  # noqa: PTH100  # as it was named
            try:
                if _ENDS.search(Path(path).read_bytes()):
                    return True
            except FileNotFoundError:
                continue  # torch.ops and others have a name that is no file
            except OSError:
                return True
    return False


_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_ENDS = re.compile(rb"SystemExit|(?<![.\w])(exit|quit)\(")
_codes: list[str | int | None] = []
_prover: Prover | None = None
_path = _folder = ""
