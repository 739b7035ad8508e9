"""Predictions of recorded runs on the command line: what the simulator expects of a run, beside what it was.

These modules decide nothing about a job.
"""
