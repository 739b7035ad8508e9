"""Numbers are drawn unseeded, then the script seeds, then one rank's number is mixed in."""

import os
import random

import probe

salt = random.getrandbits(64)
random.seed(3)
first = random.random()
random.seed(3 + int(os.environ["RANK"]))
probe.first_step(salt=salt, first=first, draw=random.random())
