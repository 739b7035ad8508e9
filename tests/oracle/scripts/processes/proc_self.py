"""The process reads of itself in /proc before RANK is read: its number, its status, its command."""

import os

import probe

LINK = os.readlink("/proc/self")
with open("/proc/self/stat") as file:
    NUMBER = file.read().split()[0]
with open("/proc/self/status") as file:
    NAME = file.readline()
with open("/proc/self/cmdline", "rb") as file:
    COMMAND = [os.path.basename(word.decode()) for word in file.read().split(b"\0") if not word.startswith(b"-")]
probe.note("read")
probe.first_step(same=[LINK == str(os.getpid()), NUMBER == str(os.getpid())], name=NAME, command=COMMAND)
