"""Agent of one node, as a pure state machine: the driver in `runtime`, the simulator and the proofs run the same code.

Two attempts of a replica never run at once on its node. No I/O, no clock, no decision what a failure means.
"""
