"""Nothing is seeded: each rank of each attempt draws its own numbers, before the first step and after it."""

import random

import probe

early = random.random()
order = list(range(50))
random.shuffle(order)
probe.note("drawn")
probe.first_step(early=early, order=order, draw=random.random())
probe.done(last=random.random())
