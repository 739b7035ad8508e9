"""Phrases in the messages of the controller that the judge of records reads, where events and effects do not suffice.

A message with other words would silently switch a check off: a test compares each phrase with what the controller says.
"""

from __future__ import annotations

import re

FAILED = re.compile(r"(?:^|; |: )(\S+)/(\d+) failed on ")  # a hang and a missed readiness deadline included
HANGS = re.compile(r"(\S+)/(\d+) failed on \S+: it hangs: no progress")
GROWS = re.compile(r"incident \d+: room for (\S+/\d+)")
INCIDENT = "incident "  # begins the message about an incident, after its stops
IGNORED = "; ignored: "
REFUSED = "is refused"
JOB_FAILS = "the job fails: "
ENDINGS = ("the job has succeeded", "the job fails", "the job is cancelled")
