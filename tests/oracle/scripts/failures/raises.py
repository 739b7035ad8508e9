"""An exception before RANK is read, with a cause, a note and a chain."""

import probe

probe.note("first line")


def fail():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("could not start") from error


try:
    fail()
except RuntimeError as error:
    error.add_note("a note")
    raise
