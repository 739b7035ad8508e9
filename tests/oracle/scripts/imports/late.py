"""Modules are imported after the first step, too: by each rank, in its order."""

import os
import sys

import probe

probe.note("first line")
rank = os.environ["RANK"]
if rank == "0":
    import csv
import difflib

probe.first_step(rank=rank)
import email.message
import sqlite3

probe.done(names=[name in sys.modules for name in ("csv", "difflib", "email", "sqlite3")])
