"""Logging is configured before RANK is read, with a handler, a filter and a level; lines are written before and after."""

import logging
import logging.config
import os

import probe

logging.basicConfig(
    level=logging.INFO, format="%(levelname)s %(name)s %(process)s %(message)s".replace("%(process)s ", "")
)
logging.getLogger("own").setLevel(logging.DEBUG)
logging.captureWarnings(True)
logging.disable(logging.NOTSET)
FACTORY = logging.getLogRecordFactory()
OWN = os.getpid()


def record(*args, **kwargs):
    made = FACTORY(*args, **kwargs)
    made.own = made.process == os.getpid() == OWN
    return made


logging.setLogRecordFactory(record)
logging.info("before")
probe.note("configured")
rank = os.environ["RANK"]
logging.getLogger("own").debug("after, rank %s", rank)
made = logging.makeLogRecord({})
probe.first_step(
    rank=rank, own=logging.getLogger("x").makeRecord("x", 20, "f", 1, "m", (), None).own, process=made.processName
)
