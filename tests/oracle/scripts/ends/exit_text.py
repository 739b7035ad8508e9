"""sys.exit with a text, in a function, before RANK is read; handlers run."""

import atexit
import sys

atexit.register(print, "at exit")
try:
    sys.exit("a reason")
finally:
    print("finally")
