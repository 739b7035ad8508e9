"""A module that was missing is there at the restart, and one that was there is gone."""

import os

import probe

try:
    import extra
except ImportError:
    extra = None
try:
    import goes
except ImportError:
    goes = None
probe.note("tried")


def appear():
    with open("extra.py", "w") as file:
        file.write("NAME = 'extra'\n")
    os.remove("goes.py")


probe.first_step(extra=getattr(extra, "NAME", None), goes=getattr(goes, "NAME", None), last_act=appear)
