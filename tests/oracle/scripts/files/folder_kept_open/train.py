"""A folder is half listed before the first step: each rank has a position of its own."""

import os
from pathlib import Path

import probe

ENTRIES = os.scandir("parts")
PATHS = Path("parts").iterdir()
half = [next(ENTRIES).name]
probe.note("half")
rank = os.environ["RANK"]
rest = sorted([*half, *(entry.name for entry in ENTRIES)])
probe.first_step(rest=rest, paths=sorted(path.name for path in PATHS))
