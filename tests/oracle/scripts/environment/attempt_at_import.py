"""The number of the attempt and the job's id are kept at import."""

import os

import probe

ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT")
RUN = os.environ.get("TORCHELASTIC_RUN_ID")
import random

random.seed(ATTEMPT)
probe.first_step(attempt=ATTEMPT, run=RUN, draw=random.random())
