"""Failures and their consequences: causes, restart sets, charges, back-off, and the end of the job.

Every failure is judged once (R5 to R12), and all of a restart set has ended or is suspended before any of it starts
(R6). The folder must not choose nodes or start worlds: `placement` and `membership` do.
"""
