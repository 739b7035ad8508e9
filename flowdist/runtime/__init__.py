"""The runtime, which runs a job on real processes. Its decisions are those of `control`, as in the simulator.

Needs Linux.
"""
