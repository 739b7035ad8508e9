"""Imports of the standard library, and nothing else."""

import probe

probe.note("first line")
import json  # noqa: E402

probe.note("after json")
import decimal
import random

probe.note("after random")
print("imported", flush=True)
probe.first_step(json=json.dumps([1]), context=repr(decimal.getcontext()))
probe.done(draw=random.random())
