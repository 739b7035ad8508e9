"""Advice on a topology: what to change so that failures cost less, found by simulations with the same faults.

Alternatives are simulated with the seeds of today's job, so that differences are not those of the draws. Nothing here
reads files or the clock; the command line does.
"""
