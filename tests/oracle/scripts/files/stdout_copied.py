"""Copies of stdout and stderr are kept before RANK is read, and written to afterwards; stderr leads to stdout."""

import os
import sys

import probe

COPY = os.dup(1)
STREAM = os.fdopen(os.dup(1), "w")
ERRORS = os.dup(2)
os.dup2(1, 2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.write(COPY, b"early\n")
print("early, by a stream", file=STREAM, flush=True)
probe.note("copied")
rank = os.environ["RANK"]
print("to nobody", flush=True)
os.write(COPY, f"late, {rank}\n".encode())
print("late, by a stream", file=STREAM, flush=True)
print("late, by stderr", file=sys.stderr, flush=True)
os.write(ERRORS, b"late, by the first stderr\n")
probe.first_step(rank=rank)
