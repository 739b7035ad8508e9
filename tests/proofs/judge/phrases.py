"""Phrases in the controller's messages that `restart_rules` and `facts` search for, where events and effects say too
little.

If the controller used other words, the check that needs the phrase would silently be off: a test compares each phrase
with the controller's messages.
"""

from __future__ import annotations

import re

FAILED = re.compile(r"(?:^|; |: )(\S+)/(\d+) failed on ")  # a hang and a missed readiness deadline included
HANGS = re.compile(r"(\S+)/(\d+) failed on \S+: it hangs: no progress")
LAGS = re.compile(r"(\S+)/(\d+) failed on \S+: it hangs: a collective of \S+ timed out")
LEADS = re.compile(r"no rank is known to be behind (\S+)/(\d+):")  # so that its own collective's timeout counts
GROWS = re.compile(r"incident \d+: room for (\S+/\d+)")
READY = re.compile(r"^(\S+)/(\d+): ready")
INCIDENT = "incident "  # begins the message about an incident, after its stops
IGNORED = "; ignored: "
REFUSED = "is refused"
JOB_FAILS = "the job fails: "
ENDINGS = ("the job has succeeded", "the job fails", "the job is cancelled")
