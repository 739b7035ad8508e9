"""Variables are removed, put past Python and cleared before modules read them."""

import os

import probe

kept = os.environ.pop("TMPDIR")
os.putenv("PUT_PAST", "yes")
os.unsetenv("LANG")
del os.environ["HOME"]
probe.note("removed")
import subprocess
import tempfile
from pathlib import Path

folder = tempfile.gettempdir()
shown = subprocess.run("echo $PUT_PAST-$LANG-$TMPDIR", shell=True, capture_output=True, text=True).stdout
probe.first_step(folder=folder, shown=shown, kept=kept, home=str(Path.home()))
