"""Predictions of real runs on the command line: made while a run lasts, kept in its folder, and compared afterwards.

The simulator plays in processes of its own (`helper`), never in that of the run. These modules decide nothing about a
job.
"""
