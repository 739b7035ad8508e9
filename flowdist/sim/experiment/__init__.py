"""Experiments: jobs to be simulated, what came of them, and the comparison of two of them.

`experiment` has the job: graph, plan, arrivals and seed, of a topology; `record` has that of a record. `play` plays it,
exactly or fast. `outcome` is what came of it, or of a recorded run; `compare` aligns two outcomes. A verb over
experiments is its variants, `play`, `compare`, and a printer. `predict` plays a recorded run with other times.
"""
