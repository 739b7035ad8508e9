"""The workers of a simulation: start-up, steps, checkpoints, collectives, services and the end, in virtual time.

The package reacts to the orders that agents carry out (start, signal, ask), and plans what happens next to each world.
It decides nothing about the job.
"""
