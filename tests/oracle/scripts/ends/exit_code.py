"""sys.exit(3) before RANK is read."""

import sys

import probe

probe.note("first line")
print("leaving", flush=True)
sys.exit(3)
