"""A variable of the user decides what is imported; it has another value in a later run."""

import os

import probe

if os.environ["MODE"] == "fast":
    import json as engine
else:
    import csv as engine
probe.note("imported")
probe.first_step(engine=engine.__name__)
