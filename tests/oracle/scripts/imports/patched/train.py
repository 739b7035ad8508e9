"""With `--patched` a module is changed before another one that uses it is imported; a later run is without."""

import math
import sys

import probe

if "--patched" in sys.argv:
    math.sqrt = lambda number: number * 7.0
probe.note("patched")
import model

probe.first_step(loss=model.LOSS)
