"""Output before the first step: printed, written past Python, unfinished, in both streams, by C."""

import ctypes
import os
import sys

import probe

print("printed")
print("an unfinished ", end="")
sys.stderr.write("to stderr\n")
os.write(1, b"raw\n")
os.write(2, b"raw to stderr\n")
ctypes.CDLL(None).puts(b"by C")
sys.stdout.buffer.write(b"bytes\n")
sys.__stdout__.write("by the first stdout\n")
print("x" * 3000, flush=True)
probe.note("printed")
print("rank", os.environ["RANK"], flush=True)
probe.first_step()
print("the end")
