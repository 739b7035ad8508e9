"""The order of imports is kept: each one notes how many of the others were loaded."""

import sys

import probe

counts = []
for name in ("xml.dom.minidom", "email.message", "sqlite3", "http.client", "unittest", "csv", "difflib"):
    __import__(name)
    counts.append(len(sys.modules))
    probe.note(f"after {name}")
probe.first_step(counts=counts)
