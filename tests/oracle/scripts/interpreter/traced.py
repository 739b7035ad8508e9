"""A tracer and a profiler of the script's own are running while RANK is read."""

import os
import sys

import probe

LINES, CALLS = [], []


def trace(frame, event, arg):
    if frame.f_code.co_filename == __file__:
        LINES.append(frame.f_lineno)
        return trace
    return None


def profile(frame, event, arg):
    if event == "call" and frame.f_code.co_filename == __file__:
        CALLS.append(frame.f_code.co_name)


def work():
    rank = os.environ["RANK"]
    return rank + "!"


sys.settrace(trace)
sys.setprofile(profile)
value = work()
other = work()
sys.settrace(None)
sys.setprofile(None)
probe.first_step(value=value, other=other, lines=LINES, calls=CALLS)
