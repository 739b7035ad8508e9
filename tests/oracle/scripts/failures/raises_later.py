"""An exception after the first step, in a function; the second attempt fails, too."""

import os

import probe


def train(step):
    if step == 2:
        raise ValueError(f"rank {os.environ['RANK']} fails")
    train(step + 1)


probe.first_step()
train(0)
