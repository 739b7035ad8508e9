"""stdin is read before RANK is."""

import os
import sys

import probe

TEXT = sys.stdin.read()
probe.note("read", text=TEXT)
probe.first_step(text=TEXT, rank=os.environ["RANK"], closed=sys.stdin.closed)
