import os
import sys

RANK = os.environ.get("RANK")
PID = os.getpid()
ARGV = getattr(sys, "orig_argv", [])[-1:]
