"""The workers of a simulation: start-up, steps, checkpoints, collectives, services and the end, in virtual time.

Reacts to what nodes are told to start, signal and ask, and plans what happens next. Decides nothing about the job.
"""
