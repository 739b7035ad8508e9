"""RANK is read for the first time in a handler of a signal."""

import os
import signal

import probe

FOUND = []
signal.signal(signal.SIGUSR1, lambda *_: FOUND.append(os.environ["RANK"]))
probe.note("installed")
os.kill(os.getpid(), signal.SIGUSR1)
probe.first_step(found=FOUND)
