"""A thread is started before RANK is read, and works on in each rank."""

import os
import queue
import threading

import probe

TASKS: queue.Queue = queue.Queue()
DONE: queue.Queue = queue.Queue()


def serve():
    while True:
        DONE.put(TASKS.get() * 2)


THREAD = threading.Thread(target=serve, name="server", daemon=True)
THREAD.start()
probe.note("started")
TASKS.put(int(os.environ["RANK"]) + 1)
probe.first_step(answer=DONE.get(timeout=20), alive=THREAD.is_alive(), count=threading.active_count())
