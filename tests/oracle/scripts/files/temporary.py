"""Temporary folders and files are made before RANK is read, and removed at exit, one rank long before the other."""

import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path

import probe

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
HELD = tempfile.TemporaryDirectory()
NAMED = tempfile.NamedTemporaryFile()
SPOOLED = tempfile.SpooledTemporaryFile()
probe.note("made")
rank = os.environ["RANK"]
probe.first_step(folder=FOLDER, held=HELD.name, named=NAMED.name)
if rank == "0":
    end = time.monotonic() + 20
    while not Path("gone.txt").exists() and time.monotonic() < end:
        time.sleep(0.01)
    pid = int(Path("gone.txt").read_text())
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    Path("gone.txt").unlink()
    probe.done(still=[os.path.exists(FOLDER), os.path.exists(HELD.name), os.path.exists(NAMED.name)])
else:
    Path("part.txt").write_text(str(os.getpid()))
    os.replace("part.txt", "gone.txt")
