import random
import sys

import probe

from . import FIRST

probe.note("imported", package=__package__, spec=__spec__.name)
probe.first_step(first=FIRST, draw=random.random(), arguments=sys.argv[1:])
