"""PYTHONHASHSEED is given: the order of a set is alike everywhere."""

import probe

NAMES = list({"a", "b", "c", "d", "e", "f", "g"})
probe.note("ordered", names=NAMES)
probe.first_step(names=NAMES, number=hash("text"))
