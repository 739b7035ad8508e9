"""numpy multiplies with the threads of its library before RANK is read, and after."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy

import probe

numpy.random.seed(0)
matrix = numpy.random.rand(400, 400)
first = float((matrix @ matrix).sum())
probe.note("computed")
rank = os.environ["RANK"]
probe.first_step(first=first, again=float((matrix @ matrix).sum()), rank=rank)
