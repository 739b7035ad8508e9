"""Invariants: conditions that hold after every event of a job, checked in full or in part.

Checks only read the state of the job. The simulator, the proofs and the tests call them; production does not.
"""
