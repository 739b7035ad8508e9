"""A lab: hosts in network namespaces of this machine, with a network whose faults a test orders.

`network.py` brings hosts up and takes them down, `switch.py` is the network between them, `processes.py` finds and
kills what runs on a host. Tests of several hosts are here; `make test-lab` runs them all.
"""
