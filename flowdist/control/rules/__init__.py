"""Rules as functions of values alone: what a failure means, how long a restart waits, when changes are too many.

Each rule is here once. The controller applies it to the state of a job, macro mode of the simulator to its own numbers.
A module of this folder knows policies, options and times. It must not read or change the state of a job.
"""
