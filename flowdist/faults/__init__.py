"""Faults as values: the fault grammar, rates, files, scenarios, random streams.

The simulator and the runtime both carry out these values. Nothing here touches a process or a simulated node.
"""
