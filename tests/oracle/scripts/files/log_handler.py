"""logging writes to a file that is opened before RANK is read, and to stderr."""

import logging
import os

import probe

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", handlers=[logging.FileHandler("own.log"), logging.StreamHandler()])
logging.info("a line")
probe.note("configured")
rank = os.environ["RANK"]
logging.info("a line")
probe.first_step(rank=rank)
