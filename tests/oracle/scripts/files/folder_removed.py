"""A folder for results is made before RANK is read, and removed between the attempts: the restart makes it again."""

import os
import shutil
from pathlib import Path

import probe

os.makedirs("results", exist_ok=True)
Path("plots", "early").mkdir(parents=True, exist_ok=True)
probe.note("made")
rank = os.environ["RANK"]
for folder in ("results", "plots/early"):
    Path(folder, f"{rank}.txt").write_text(rank)


def clean():
    shutil.rmtree("results")
    shutil.rmtree("plots")


probe.first_step(rank=rank, last_act=clean)
