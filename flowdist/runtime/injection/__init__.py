"""Injection of faults into real processes and connections, for `flowdist run --fail` and its like.

`injector` decides when a fault of the plan is due and what it hits; the other modules carry out the faults. The
controller is never told of a fault and has to detect it, as it would have to detect a real one.
"""
