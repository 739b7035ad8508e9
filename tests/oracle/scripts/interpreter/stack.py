"""The stack as the script sees it: frames, tracebacks, the caller's globals, depth of recursion."""

import inspect
import os
import sys
import traceback

import probe


def caller():
    return sys._getframe(1).f_globals["__name__"]


def depth():
    try:
        return 1 + depth()
    except RecursionError:
        return 0


rank = os.environ["RANK"]
try:
    raise ValueError("caught")
except ValueError:
    text = traceback.format_exc()
probe.first_step(
    rank=rank,
    caller=caller(),
    text=text,
    outermost=inspect.stack()[-1].function,
    context=traceback.extract_stack()[-1].name,
    deep=depth() > 900,
)
