"""A `sitecustomize` reads RANK and the process id before the script begins."""

import os
import sitecustomize

import probe

probe.note("first line")
probe.first_step(rank=sitecustomize.RANK, same=sitecustomize.PID == os.getpid(), argv=sitecustomize.ARGV)
