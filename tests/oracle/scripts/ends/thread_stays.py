"""A thread that is no daemon keeps the process alive until it has ended."""

import threading
import time

import probe


def work():
    time.sleep(0.3)
    print("thread ends", flush=True)


probe.first_step()
threading.Thread(target=work).start()
print("main ends", flush=True)
