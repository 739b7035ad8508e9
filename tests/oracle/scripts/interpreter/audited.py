"""An audit hook of the script counts what happens: only what the script does itself."""

import os
import sys

import probe

SEEN = []
WATCHED = (
    "os.fork",
    "subprocess.Popen",
    "socket.bind",
    "os.exec",
    "os.kill",
    "os.putenv",
    "open",
    "sys._getframe",
    "os.chdir",
)


def hook(event, args):
    if event in WATCHED and len(SEEN) < 1000:
        SEEN.append(f"{event} {args[0]!r}" if event == "open" else event)


sys.addaudithook(hook)
probe.note("hooked")
rank = os.environ["RANK"]
with open(__file__):
    pass
seen = [event for event in SEEN if "_getframe" not in event]
probe.first_step(rank=rank, seen=seen)
