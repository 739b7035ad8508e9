"""Injection of faults into real processes and connections, for `flowdist run --fail` and its like.

`injector` decides when a fault of the plan is due and what it hits; the other modules carry out the faults. The pure
controller gets no notice of a fault: it has to detect the fault as it would detect a real one.
"""
