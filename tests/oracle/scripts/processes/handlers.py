"""Handlers of signals are installed before RANK is read, and used."""

import os
import signal

import probe

GOT = []
signal.signal(signal.SIGUSR1, lambda number, frame: GOT.append([number, frame is not None]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
signal.siginterrupt(signal.SIGUSR1, False)
os.kill(os.getpid(), signal.SIGUSR2)
probe.note("installed")
rank = os.environ["RANK"]
os.kill(os.getpid(), signal.SIGUSR1)
probe.first_step(got=GOT, pending=sorted(signal.sigpending()), rank=rank)
