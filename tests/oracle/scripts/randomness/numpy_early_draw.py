"""numpy's global state: a number is drawn before the first step, unseeded."""

import numpy

import probe

ORDER = numpy.random.permutation(20).tolist()
probe.note("drawn")
probe.first_step(order=ORDER, draw=float(numpy.random.rand()))
