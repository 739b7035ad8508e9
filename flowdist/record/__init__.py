"""Records of jobs: the lines of a journal or trace, the state and the time accounts that follow from them.

`journal` defines the lines, and `replay` rebuilds the job that they describe. `status` describes a job at one moment as
a value. `timesheet` says where the time went. Nothing in this folder makes a decision.
"""
