"""The workers of a simulation: start-up, steps, checkpoints, collectives and the end, in virtual time."""
