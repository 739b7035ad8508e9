"""Generators, coroutines, contexts and stacks of `with` are open while RANK is read."""

import contextlib
import contextvars
import os

import probe

NAME = contextvars.ContextVar("NAME", default="none")
NAME.set("main")
COPY = contextvars.copy_context()
NAME.set("later")


def numbers():
    try:
        for number in range(5):
            yield number
    finally:
        print("numbers closed", flush=True)


@contextlib.contextmanager
def scope(name):
    print("enter", name)
    yield name
    print("leave", name, flush=True)


GENERATOR = numbers()
first = next(GENERATOR)
with contextlib.ExitStack() as stack:
    stack.enter_context(scope("outer"))
    stack.callback(print, "called back")
    with scope("inner"):
        probe.note("inside")
        rank = os.environ["RANK"]
        probe.first_step(rank=rank, first=first, next=next(GENERATOR), name=NAME.get(), copied=COPY.run(NAME.get))
