"""A shared lock is taken on a file before RANK is read."""

import fcntl
import os

import probe

FILE = open("lock.txt", "rb")
fcntl.flock(FILE, fcntl.LOCK_SH)
OTHER = open("record.txt", "rb")
fcntl.lockf(OTHER, fcntl.LOCK_SH)
probe.note("locked")
rank = os.environ["RANK"]


def locks():
    own = {str(os.getpid())}
    inodes = {str(os.stat(name).st_ino): name for name in ("lock.txt", "record.txt")}
    with open("/proc/locks") as file:
        rows = [line.split() for line in file]
    return sorted(
        [inodes[row[-3].split(":")[-1]], row[1]] for row in rows if row[-4] in own and row[-3].split(":")[-1] in inodes
    )


probe.first_step(rank=rank, locks=locks())
