"""A thread was started and has ended before RANK is read; its number and locals are kept."""

import os
import threading

import probe

LOCAL = threading.local()
LOCAL.value = "main"
SEEN = []
thread = threading.Thread(target=lambda: SEEN.append(getattr(LOCAL, "value", None)))
thread.start()
thread.join()
LOCK = threading.RLock()
LOCK.acquire()
probe.note("ended")
rank = os.environ["RANK"]
LOCK.release()
main = threading.main_thread()
probe.first_step(
    seen=SEEN,
    value=LOCAL.value,
    same=main is threading.current_thread(),
    native=main.native_id == os.getpid(),
    name=main.name,
)
