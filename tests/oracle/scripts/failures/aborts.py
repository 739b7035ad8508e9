"""The script aborts, with faulthandler on, before RANK is read."""

import faulthandler
import resource

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable()
print("aborting", flush=True)
import os

os.abort()
