"""The date is asked of `datetime` after RANK and a long computation, before the first act."""

import os
from datetime import datetime

import probe

rank = os.environ["RANK"]
sum(range(40_000_000))  # long enough for a restart to go on here
BY_DATE = datetime.now().isoformat()
probe.first_step(by_date=BY_DATE)
