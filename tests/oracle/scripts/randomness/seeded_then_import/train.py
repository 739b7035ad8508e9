"""The script seeds, and imports a module that draws; five more draws follow."""

import random

import probe

random.seed(42)
import drawer

probe.note("imported")
draws = [random.randint(0, 99) for _ in range(5)]
probe.first_step(drawn=drawer.DRAWN, draws=draws)
probe.done(last=random.random())
