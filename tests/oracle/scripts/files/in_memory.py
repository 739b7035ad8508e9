"""A checkpoint in /dev/shm is looked for before RANK is read; it appears between the attempts."""

import os
import time
from pathlib import Path

import probe

PLACE = Path("/dev/shm") / f"checkpoint{probe.hash_of(os.getcwd())}"
STEP = int(PLACE.read_text()) if PLACE.exists() else 0
probe.note("looked", step=STEP)
rank = int(os.environ["RANK"])
probe.first_step(step=STEP, last_act=lambda: PLACE.write_text("5"))
other = Path(f"../notes/1-{1 - rank}.json")
end = time.monotonic() + 60
while not other.exists() and time.monotonic() < end:
    time.sleep(0.01)
PLACE.unlink(missing_ok=True)
