"""The clock is read after RANK and a long computation, before the first act: each attempt has its own time."""

import os
from datetime import datetime
from time import monotonic

import probe

rank = os.environ["RANK"]
sum(range(40_000_000))  # long enough for a restart to go on here
began = monotonic()
seconds_left = began + 3600 - monotonic()
probe.first_step(began=began, left=seconds_left > 3590, has_date=datetime.now().year > 2000)
