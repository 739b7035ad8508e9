"""Dispositions that Python or a parent sets: SIGPIPE, SIGINT, SIGCHLD, and what a child inherits."""

import os
import signal
import subprocess
from pathlib import Path

import probe

probe.note("first line")


def ignored(text):
    return next(line for line in text.splitlines() if line.startswith("SigIgn"))


child = subprocess.run(["grep", "Sig[BIC]", "/proc/self/status"], capture_output=True, text=True).stdout
names = ("SIGPIPE", "SIGINT", "SIGCHLD", "SIGTERM", "SIGXFSZ", "SIGHUP", "SIGQUIT", "SIGUSR1")
probe.first_step(
    own=ignored(Path("/proc/self/status").read_text()),
    child=child.splitlines(),
    found={name: repr(signal.getsignal(getattr(signal, name))) for name in names[:2]},
    rank=os.environ["RANK"],
)
