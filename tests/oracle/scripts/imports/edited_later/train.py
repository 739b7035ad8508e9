"""A module and a function of the script are edited before a later run."""

import helper
import probe


def compute():
    return helper.VERSION + " old"


probe.first_step(value=compute())
