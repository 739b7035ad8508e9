"""A database in memory is opened at import, and rows are written by each rank."""

import os
import sqlite3

import probe

CONNECTION = sqlite3.connect(":memory:")
CONNECTION.execute("create table rows (number integer)")
CONNECTION.execute("insert into rows values (1)")
probe.note("opened")
rank = int(os.environ["RANK"])
CONNECTION.execute("insert into rows values (?)", (10 + rank,))
probe.first_step(rows=[row[0] for row in CONNECTION.execute("select number from rows order by number")])
