"""The script sets a variable and executes itself anew before RANK is read."""

import os
import sys

import probe

if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    print("once more", flush=True)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv, "again"])
probe.note("executed")
probe.first_step(argv=sys.argv, rank=os.environ["RANK"])
