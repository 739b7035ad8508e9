"""Python imports this at its start where this folder is in PYTHONPATH: whatever a tested job starts or forks is late.

Most are late by little and some by much, up to LATE seconds. A test that waits for one thing and relies on another, for
rank 1 to be there and on rank 0 to have saved, fails then: `make test-late`.
"""

import os
import random
import time


def _be_late() -> None:
    time.sleep(float(os.environ.get("LATE", "1.5")) * random.SystemRandom().random() ** 3)


if "FLOWDIST_TEST_MARK" in os.environ:
    _be_late()
    os.register_at_fork(after_in_child=_be_late)
