"""A checkpoint is looked for before RANK is read, in the way that the argument names; it appears between the attempts."""

import glob
import os
import sys
from pathlib import Path

import probe

CHECKPOINT = "ckpt.txt"


def _opened():
    try:
        with open(CHECKPOINT) as file:
            return file.read()
    except FileNotFoundError:
        return False


def _status(look):
    try:
        return look(CHECKPOINT).st_size
    except FileNotFoundError:
        return False


WAYS = {
    "exists": lambda: os.path.exists(CHECKPOINT),
    "isfile": lambda: os.path.isfile(CHECKPOINT),
    "path": lambda: Path(CHECKPOINT).exists(),
    "stat": lambda: _status(os.stat),
    "lstat": lambda: _status(os.lstat),
    "glob": lambda: glob.glob("*.txt"),
    "listdir": lambda: sorted(name for name in os.listdir(".") if name.endswith(".txt")),
    "scandir": lambda: sorted(entry.name for entry in os.scandir() if entry.name.endswith(".txt")),
    "walk": lambda: sorted(name for _, _, names in os.walk(".") for name in names if name.endswith(".txt")),
    "iterdir": lambda: sorted(path.name for path in Path().iterdir() if path.suffix == ".txt"),
    "access": lambda: os.access(CHECKPOINT, os.R_OK),
    "open": _opened,
    "size": lambda: os.path.getsize(CHECKPOINT) if os.path.lexists(CHECKPOINT) else 0,
    "dir_fd": lambda: _in_folder(),
    "readlink": lambda: _linked(),
    "realpath": lambda: os.path.basename(os.path.realpath("link")),
    "statvfs": lambda: os.statvfs(".").f_bsize > 0 and os.path.exists(CHECKPOINT),
    "ctypes": lambda: _accessed(),
}


def _in_folder():
    folder = os.open(".", os.O_RDONLY)
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".txt"))
    finally:
        os.close(folder)


def _linked():
    try:
        return os.readlink("link")
    except OSError:
        return None


def _accessed():
    import ctypes

    return ctypes.CDLL(None).access(CHECKPOINT.encode(), 4)


def save():
    with open(CHECKPOINT, "w") as file:
        file.write("step 3")
    os.symlink(CHECKPOINT, "link") if not os.path.islink("link") else None


FOUND = WAYS[sys.argv[1]]()
probe.note("looked", found=FOUND)
probe.first_step(found=FOUND, last_act=save)
