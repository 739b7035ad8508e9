"""Agent of one node, as a pure state machine.

The agent starts, stops and reports workers on the orders of the controller, and kills them when its lease runs out. It
promises that two attempts of a replica never run at once on its node. It must not do I/O, read a clock, or decide what
a failure means: a driver in `runtime`, the simulator and the proofs run the same code.
"""
