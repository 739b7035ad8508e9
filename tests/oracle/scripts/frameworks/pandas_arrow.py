"""pandas with pyarrow: a frame is made before RANK is read, grouped, and converted after."""

import os

import numpy
import pandas

import probe

probe.note("imported")
numpy.random.seed(1)
FRAME = pandas.DataFrame({"key": list("abab"), "value": numpy.random.rand(4)})
means = FRAME.groupby("key")["value"].mean()
probe.note("grouped")
rank = os.environ["RANK"]
import pyarrow

TABLE = pyarrow.Table.from_pandas(FRAME)
probe.first_step(means=means.tolist(), sample=FRAME.sample(2).index.tolist(), rows=TABLE.num_rows, rank=rank)
