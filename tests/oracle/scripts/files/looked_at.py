"""Times, sizes and kinds of files are asked in rarer ways before RANK is read; they change between the attempts."""

import os
import shutil
import sys
from pathlib import Path

import probe

OWN = Path("own.txt")
WAYS = {
    "mtime": lambda: os.path.getmtime(OWN) if OWN.exists() else None,
    "samefile": lambda: OWN.exists() and os.path.samefile(OWN, __file__),
    "resolve": lambda: str(Path("alias").resolve().name),
    "which": lambda: shutil.which("tool", path=os.getcwd()) is not None,
    "rglob": lambda: sorted(path.name for path in Path().rglob("*.txt")),
    "descriptor": lambda: sorted(name for name in os.listdir(os.open(".", os.O_RDONLY)) if name.endswith(".txt")),
    "stat_folder": lambda: os.stat(".").st_nlink,
    "isdir": lambda: os.path.isdir("folder"),
    "mode": lambda: OWN.exists() and oct(OWN.stat().st_mode),
    "usage": lambda: len(os.listdir("folder")) if os.path.isdir("folder") else None,
}


def change():
    OWN.write_text("x")
    os.chmod(OWN, 0o640)
    os.utime(OWN, (1_000_000, 1_000_000))
    Path("folder/inner").mkdir(parents=True, exist_ok=True)
    Path("tool").write_text("#!/bin/sh\n")
    os.chmod("tool", 0o755)
    if not os.path.islink("alias"):
        os.symlink("own.txt", "alias")


FOUND = WAYS[sys.argv[1]]()
probe.note("looked")
probe.first_step(found=FOUND, rank=os.environ["RANK"], last_act=change)
