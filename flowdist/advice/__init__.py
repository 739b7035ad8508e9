"""Advice on a topology: what to change so that failures cost less, found by simulations with the same faults.

Each alternative differs from the job of today in one thing, and is simulated with the same seeds, so that the
differences are those of the change and not of the draws. The choice is made with some seeds, and what it gains is
measured with others: the best of many alternatives would look better than it is on the seeds that chose it. Nothing
here reads files or the clock; the command line does.
"""
