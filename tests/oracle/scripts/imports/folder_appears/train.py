"""A folder of modules that is missing at first, and that a rank makes, is looked in at the restart."""

import os
import sys

sys.path.insert(0, "generated")

import colorsys  # noqa: E402, F401

import probe  # noqa: E402

rank = os.environ["RANK"]
try:
    import tables
except ImportError:
    tables = None


def generate():
    os.makedirs("generated", exist_ok=True)
    with open("generated/tables.py", "w") as file:
        file.write("NAME = 'generated'\n")


probe.first_step(rank=rank, tables=getattr(tables, "NAME", None), last_act=generate)
