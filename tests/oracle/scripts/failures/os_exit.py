"""os._exit before RANK is read: nothing is flushed, no handler runs."""

import atexit
import os
import sys

atexit.register(print, "never")
sys.stdout.write("lost or not")
print("written", flush=True)
print("kept in the buffer", end="")
os._exit(4)
