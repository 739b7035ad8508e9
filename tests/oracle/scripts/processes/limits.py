"""Limits, niceness, affinity, the core filter and the name of the process are set before RANK is read."""

import ctypes
import os
import resource

import probe

resource.setrlimit(resource.RLIMIT_NOFILE, (333, 444))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(3)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ctypes.CDLL(None).prctl(15, b"trainer", 0, 0, 0)
probe.note("set")
rank = os.environ["RANK"]
probe.first_step(files=resource.getrlimit(resource.RLIMIT_NOFILE), nice=os.nice(0), rank=rank)
