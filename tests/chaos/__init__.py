"""Crash safety as a table that is run: each row is a fault, what is promised, and what was observed.

`make chaos` runs all rows and renews evidence/chaos.md; `make test` runs the quick ones. A row plays its fault on a
job of real processes whose result is known beforehand: a hash over all of its steps, which is wrong if a step is
lost, done twice, or done by two attempts at once.
"""
