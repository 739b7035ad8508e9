"""Settings of the interpreter are changed before RANK is read: recursion, switching, gc, digits, tracing, bytecode."""

import faulthandler
import gc
import os
import sys
import tracemalloc

import probe

sys.setrecursionlimit(2222)
sys.setswitchinterval(0.02)
sys.set_int_max_str_digits(5000)
sys.dont_write_bytecode = True
gc.disable()
gc.set_threshold(500, 5, 5)
gc.callbacks.append(lambda phase, details: None)
faulthandler.enable()
tracemalloc.start(3)
probe.note("set")
rank = os.environ["RANK"]
probe.first_step(
    rank=rank,
    limit=sys.getrecursionlimit(),
    traced=tracemalloc.is_tracing(),
    depth=tracemalloc.get_traceback_limit(),
    gc=gc.isenabled(),
)
