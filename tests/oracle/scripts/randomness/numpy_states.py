"""numpy: the global state unseeded, generators seeded and not, made at import."""

import numpy

import probe

GENERATOR = numpy.random.default_rng()
LEGACY = numpy.random.RandomState()
ENTROPY = str(numpy.random.SeedSequence().entropy)
SEEDED = numpy.random.default_rng(5)
probe.note("made")
probe.first_step(
    own=GENERATOR.random(),
    legacy=LEGACY.random_sample(),
    entropy=ENTROPY,
    seeded=SEEDED.random(),
    globally=float(numpy.random.rand()),
)
probe.done(last=float(numpy.random.rand()))
