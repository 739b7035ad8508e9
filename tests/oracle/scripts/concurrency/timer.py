"""A timer and a queue that joins at exit are running before RANK is read."""

import os
import threading

import probe

FIRED = threading.Event()
TIMER = threading.Timer(0.05, FIRED.set)
TIMER.start()
probe.note("started")
rank = os.environ["RANK"]
probe.first_step(fired=FIRED.wait(20), rank=rank)
