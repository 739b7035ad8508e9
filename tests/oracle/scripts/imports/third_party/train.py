"""`sys.path.insert` puts a copy of an installed package first; a later run is without the argument."""

import sys

import probe

if "--third-party" in sys.argv:
    sys.path.insert(0, "third_party")
probe.note("path")
import tqdm

probe.note("imported")
probe.first_step(version=tqdm.__version__, mine=getattr(tqdm, "MINE", False))
