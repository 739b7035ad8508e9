"""numpy is seeded before other modules are imported; draws before and after the first step."""

import random

import numpy

import probe

numpy.random.seed(11)
random.seed(11)
early = numpy.random.rand(2).tolist()
probe.note("drawn")
import numpy.ma
import numpy.polynomial

probe.first_step(early=early, draws=numpy.random.rand(3).tolist(), plain=random.random())
probe.done(last=numpy.random.randint(0, 1000, 3).tolist())
