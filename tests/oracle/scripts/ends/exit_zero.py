"""The script ends well without reading RANK or taking a step."""

import sys

print("nothing to do")
sys.exit()
