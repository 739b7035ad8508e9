"""A state of the generator is kept at import, restored later, and drawn from."""

import random

import probe

random.seed("a text")
STATE = random.getstate()
random.random()
probe.note("kept")
first = random.random()
random.setstate(STATE)
probe.first_step(first=first, again=[random.random(), random.random()])
