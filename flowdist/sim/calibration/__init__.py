"""Calibration of the simulator: the times of a job's workers as journals of real runs show them.

`observe` collects what happened in a record, `fit` makes times and distributions of it, and `file` writes and reads
them as `workload.toml`. Nothing here makes decisions or simulates: `sim.experiment.predict` plays runs with them.
"""
