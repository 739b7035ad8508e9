"""RANK is read where everything is caught, inside of callbacks, a property, `__del__` and a handler of a signal."""

import os
import re
import signal

import probe

FOUND = []


class Asks:
    @property
    def rank(self):
        return os.environ["RANK"]

    def __del__(self):
        FOUND.append(self.rank)

    def __getattr__(self, name):
        raise AttributeError(name)


try:
    FOUND.append(re.sub("x", lambda match: Asks().rank, "x"))
except BaseException as error:
    FOUND.append(repr(error))
finally:
    FOUND.append("finally")
FOUND += sorted(["a", "b"], key=lambda name: os.environ["RANK"] + name)
signal.signal(signal.SIGUSR1, lambda *_: FOUND.append(os.environ["LOCAL_RANK"]))
os.kill(os.getpid(), signal.SIGUSR1)
Asks()
probe.first_step(found=FOUND)
