"""A package on PYTHONPATH is replaced by another version between the attempts, between two imports of it."""

import os

import probe

import installed

FIRST = installed.VERSION
probe.note("imported")


def upgrade():
    for name in ("__init__", "late"):
        with open(f"library/installed/{name}.py", "w") as file:
            file.write("VERSION = 'version 2.0'\n")


rank = os.environ["RANK"]
import installed.late

probe.first_step(first=FIRST, late=installed.late.VERSION, rank=rank, last_act=upgrade)
