"""The rank is read, and the first step taken, in a thread."""

import os
import threading

import probe

probe.note("first line")


def main():
    probe.first_step(rank=os.environ["RANK"], name=threading.current_thread().name)


thread = threading.Thread(target=main, name="trainer")
thread.start()
thread.join()
probe.done(count=threading.active_count())
