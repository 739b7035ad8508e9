"""Faults in virtual time: carried out from a plan, drawn from a seed, and explained if they never fired.

Faults act on nodes, links, processes and disks of the simulation. They never change the state of the controller.
"""
