import random

import numpy

GENERATOR = numpy.random.default_rng()
PLAIN = random.Random()


def draw():
    return float(GENERATOR.random())


def order():
    return PLAIN.sample(range(1000), 5)
