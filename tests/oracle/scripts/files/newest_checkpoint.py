"""The newest file of a folder is chosen by its time before RANK is read; a newer one is written between the attempts."""

import os
from pathlib import Path

import probe

FOLDER = Path("saved")
newest = max(FOLDER.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns, default=None) if FOLDER.is_dir() else None
START = int(newest.read_text()) if newest else 0
probe.note("chosen", start=START)


def save():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{START + 10}.txt").write_text(str(START + 10))


probe.first_step(start=START, rank=os.environ["RANK"], last_act=save)
