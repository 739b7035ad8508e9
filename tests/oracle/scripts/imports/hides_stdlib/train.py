"""Files beside the script hide modules of the standard library, and one that is installed."""

import csv

import probe

probe.note("imported")
import this
import tqdm

probe.first_step(csv=csv.MINE, this=this.MINE, tqdm=tqdm.MINE)
