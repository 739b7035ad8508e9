"""The script reads its own source, relative and absolute, and where it lies."""

import inspect
import linecache
import os

import probe


def shown():
    return 1


probe.note("first line", file=__file__)
with open(__file__) as file:
    text = file.read()
probe.first_step(
    lines=len(text.splitlines()),
    source=inspect.getsource(shown),
    line=linecache.getline(__file__, 1),
    folder=os.path.dirname(os.path.abspath(__file__)),
    module=inspect.getmodule(shown).__name__,
)
