"""The script ends at its last line, without reading RANK; output is unfinished."""

import atexit

import probe

atexit.register(lambda: print("at exit", end=""))
probe.note("only line")
print("no newline", end="")
