"""A variable and a list count starts: every attempt of every rank begins with the first."""

import os

import probe

os.environ["COUNT"] = str(int(os.environ.get("COUNT", "0")) + 1)
COUNTS = [1]
probe.note("counted")
rank = os.environ["RANK"]
os.environ["COUNT"] += "+"
COUNTS.append(2)
probe.first_step(count=os.environ["COUNT"], counts=COUNTS, rank=rank)
