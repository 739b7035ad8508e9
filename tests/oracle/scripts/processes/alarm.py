"""An alarm is set before RANK is read: it is still running in each rank."""

import os
import signal

import probe

signal.signal(signal.SIGALRM, lambda *_: print("alarm", flush=True))
signal.setitimer(signal.ITIMER_REAL, 1000)
signal.setitimer(signal.ITIMER_VIRTUAL, 2000, 3)
probe.note("set")
rank = os.environ["RANK"]
left = [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)]
probe.first_step(left=[[number > 0, interval] for number, interval in left], rank=rank)
