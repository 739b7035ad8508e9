"""Invariants: conditions that hold after every event of a job, checked in full or incrementally.

The simulator, the proofs and the tests call the checks; production does not. A broken invariant is a bug of `control`:
the check raises an `AssertionError` that names the part of the job. Checks must not change the state of the job.
"""
