"""faulthandler's watchdog, a thread of C, is started before RANK is read: it writes in each rank."""

import faulthandler
import os
import time

import probe

faulthandler.dump_traceback_later(1.5)
probe.note("started")
rank = os.environ["RANK"]
time.sleep(4)
probe.first_step(wrote=os.fstat(2).st_size > 0, rank=rank)
