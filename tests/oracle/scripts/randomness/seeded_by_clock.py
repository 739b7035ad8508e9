"""Numbers are seeded by the clock, a process id and an address: ranks differ, and so do attempts."""

import os
import random
import time

import probe

BY_TIME = random.Random(time.time_ns()).random()
BY_COUNTER = random.Random(time.perf_counter_ns()).random()
BY_PID = random.Random(os.getpid()).random()
random.seed(time.time())
probe.note("seeded")
probe.first_step(by_time=BY_TIME, by_counter=BY_COUNTER, by_pid=BY_PID, draw=random.random())
