"""Failures and their consequences: causes, restart sets, charges, back-off, and the end of the job.

This folder judges every failure once: which incident it belongs to, what restarts, which role is charged (R5 to R12).
It promises that every worker of a restart set has ended or is suspended before any of them starts again (R6). It must
not choose nodes, which is the task of `placement`, or start worlds, which is the task of `membership`.
"""
