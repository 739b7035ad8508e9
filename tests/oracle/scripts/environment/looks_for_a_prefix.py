"""All variables are looked through for a prefix, as tqdm does when it is imported; then numbers are drawn."""

import os
import random

import probe

random.seed(7)
mine = {name: text for name, text in os.environ.items() if name.startswith("HF_")}
probe.note("looked", mine=mine)
draws = [random.random() for _ in range(3)]
probe.first_step(mine=mine, draws=draws)
