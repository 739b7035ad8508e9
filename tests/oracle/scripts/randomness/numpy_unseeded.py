"""numpy's global state: nobody seeds it, each rank has its own."""

import numpy

import probe

probe.note("imported")
probe.first_step(draws=numpy.random.rand(3).tolist())
