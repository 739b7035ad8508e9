"""Faults as plain data: the fault grammar, rates, files, scenarios, random streams.

The simulator and the runtime both carry out these faults. Nothing here touches a process or a simulated node.
"""
