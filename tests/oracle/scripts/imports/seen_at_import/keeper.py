import os
import sys

import __main__

mask = os.umask(0)
os.umask(mask)
KEPT = {
    "argv": list(sys.argv),
    "cwd": os.getcwd(),
    "main": __main__.__file__,
    "spec": repr(__main__.__spec__),
    "name": __main__.__name__,
    "mask": mask,
    "modules": sorted(name for name in sys.modules if name.startswith("k")),
    "same": sys.modules["__main__"] is __main__,
}
