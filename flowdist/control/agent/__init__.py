"""The agent of one node, as a pure state machine.

It starts, stops and reports workers on the order of the controller, and kills them when its lease is over. It does no
I/O and reads no clock: a driver in `runtime`, the simulator and the proofs run the same code.
"""
