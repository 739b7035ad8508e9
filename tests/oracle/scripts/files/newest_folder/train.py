"""The time, the entries or the link of a folder are asked before RANK is read, as the argument says; then they change."""

import os
import sys
from pathlib import Path

import probe

FOLDERS = ("a", "b")
LATE_S = 4_000_000_000


def _linked(read):
    return os.path.basename(read("latest")) if os.path.lexists("latest") else None


def _by_descriptor(name):
    folder = os.open(name, os.O_RDONLY)
    try:
        return sorted(os.listdir(folder))
    finally:
        os.close(folder)


def _below(name):
    return [sorted(files) for _, _, files, _ in os.fwalk(name)]


WAYS = {
    "getmtime": lambda: [os.path.getmtime(name) > LATE_S for name in FOLDERS],
    "stat": lambda: [os.stat(name).st_mtime > LATE_S for name in FOLDERS],
    "pathlib": lambda: [Path(name).stat().st_mtime > LATE_S for name in FOLDERS],
    "scandir": lambda: sorted(entry.name for entry in os.scandir() if entry.stat().st_mtime > LATE_S),
    "readlink": lambda: _linked(os.readlink),
    "realpath": lambda: _linked(os.path.realpath),
    "resolve": lambda: _linked(lambda name: Path(name).resolve()),
    "descriptor": lambda: list(map(_by_descriptor, FOLDERS)),
    "fwalk": lambda: list(map(_below, FOLDERS)),
}


def save():
    name = "a" if os.path.getmtime("b") > LATE_S else "b"
    Path(name, "more.txt").write_text("saved")
    os.utime(name, (LATE_S + 1, LATE_S + 1))
    os.symlink(name, "new")
    os.replace("new", "latest")


FOUND = WAYS[sys.argv[1]]()
probe.note("asked")
probe.first_step(found=FOUND, rank=os.environ["RANK"], last_act=save)
