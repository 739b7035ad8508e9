"""A module keeps a generator of its own, made unseeded when it is imported, as libraries do."""

import probe
import sampler

probe.note("imported")
probe.first_step(first=sampler.draw(), order=sampler.order())
probe.done(later=sampler.draw())
