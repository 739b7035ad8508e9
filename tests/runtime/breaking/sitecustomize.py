"""Raises an exception inside a process of flowdist: `FLOWDIST_TEST_BREAK` says where.

`PROCESS MODULE:QUALIFIED.NAME CALL TIMES FOLDER`: in each process whose command line has PROCESS, the CALLth call of
the function raises `RuntimeError("injected")`, in TIMES processes at most. FOLDER counts them, since each is a new
process. MODULE cannot be the one that the process runs by `python -m`.
"""

import contextlib
import functools
import importlib
import inspect
import os
import sys


def _break(module, name, call, times, folder):
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    whole, calls = getattr(owner, last), 0

    def is_due():
        nonlocal calls
        calls += 1
        if calls != call:
            return False
        for number in range(times):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{folder}/broken-{number}", os.O_CREAT | os.O_EXCL))
                return True
        return False

    @functools.wraps(whole)
    def broken(*args, **kwargs):
        if is_due():
            raise RuntimeError("injected")
        return whole(*args, **kwargs)

    @functools.wraps(whole)
    async def broken_task(*args, **kwargs):
        if is_due():
            raise RuntimeError("injected")
        return await whole(*args, **kwargs)

    setattr(owner, last, broken_task if inspect.iscoroutinefunction(whole) else broken)


if "FLOWDIST_TEST_BREAK" in os.environ:
    process, where, call, times, folder = os.environ["FLOWDIST_TEST_BREAK"].split()
    if process in "_".join(sys.orig_argv):
        _break(*where.split(":"), int(call), int(times), folder)
