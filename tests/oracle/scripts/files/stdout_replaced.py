"""sys.stdout is replaced before RANK is read; what it has kept is written at the end."""

import contextlib
import io
import os
import sys

import probe

KEPT = io.StringIO()
STACK = contextlib.ExitStack()
STACK.enter_context(contextlib.redirect_stdout(KEPT))
print("kept")
sys.stderr = io.TextIOWrapper(os.fdopen(os.dup(2), "wb"), line_buffering=True, encoding="latin-1")
print("grün", file=sys.stderr)
probe.note("replaced")
print("rank", os.environ["RANK"])
probe.first_step(kept=KEPT.getvalue())
STACK.close()
print(KEPT.getvalue(), end="")
