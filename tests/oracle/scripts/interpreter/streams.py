"""The standard streams: buffers, modes, descriptors, and what a crash leaves of a line."""

import os
import sys

import probe

print("half a line", end="")
found = [[s.write_through, s.line_buffering, s.fileno(), s.isatty(), s.newlines, type(s.buffer).__name__] for s in (sys.stdout, sys.stderr)]
sys.stdout.reconfigure(encoding="utf-16")
sys.stdout.reconfigure(encoding="utf-8", errors="replace")
probe.note("reconfigured")
rank = os.environ["RANK"]
print(" and the rest", rank)
probe.first_step(found=found, stdin=[sys.stdin.fileno(), sys.stdin.readable(), sys.stdin.isatty()], same=sys.stdout is sys.__stdout__)
