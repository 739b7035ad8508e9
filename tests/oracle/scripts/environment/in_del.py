"""RANK is read for the first time in `__del__`, inside a call from C: an error there would be swallowed."""

import os

import probe

FOUND = []


class Asks:
    def __del__(self):
        FOUND.append(os.environ["RANK"])


asks = Asks()
probe.note("made")
del asks
probe.first_step(found=FOUND)
