"""The clock, the process's times and the time of a file are kept at import."""

import os
import time

import probe

STARTED = time.time()
MONOTONIC = time.monotonic()
CPU = time.process_time()
probe.note("started")
rank = os.environ["RANK"]
waited = time.time() - STARTED
probe.first_step(by_time=STARTED, by_clock=MONOTONIC, waited_long=waited > 5, cpu=CPU < 5)
