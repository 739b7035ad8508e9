"""A process is started before RANK is read, spoken to, and waited for."""

import os
import subprocess

import probe

CHILD = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
first = subprocess.run(["echo", "one"], capture_output=True, text=True).stdout
probe.note("started")
answer, _ = CHILD.communicate(os.environ["RANK"])
probe.first_step(first=first, answer=answer, code=CHILD.wait())
