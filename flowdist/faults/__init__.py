"""Faults as plain data, for simulator and runtime. Nothing here touches a process or a simulated node."""
