"""`os.environ` is replaced by a plain dictionary, and a module has kept the old object."""

import os
from os import environ as kept

import probe

os.environ = {**os.environ, "MINE": "1"}
probe_kept = "RANK" in kept
values = [os.environ["RANK"], kept["RANK"], kept.get("MINE"), type(os.environ).__name__]
os.environ = kept
probe.first_step(values=values, probe_kept=probe_kept)
