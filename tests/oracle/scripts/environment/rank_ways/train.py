"""A module reads RANK when it is imported, in the way that the first argument names."""

import probe

probe.note("first line")
import asker

probe.note("asked")
probe.first_step(rank=asker.RANK, local=asker.again())
