"""Generators of the script's own, made at import and seeded by the system, differ between ranks."""

import random

import probe

GENERATOR = random.Random()
SYSTEM = random.SystemRandom()
SEEDED = random.Random(5)
probe.note("made")
random.seed()
probe.first_step(own=GENERATOR.random(), system=SYSTEM.random(), seeded=SEEDED.random(), globally=random.random())
