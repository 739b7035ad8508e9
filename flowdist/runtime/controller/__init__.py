"""The controller process: a driver for the pure controller that serves agents, other hosts, operators and metrics.

It decides only which hosts may join, under which names; all else is decided in `flowdist.control`.
"""
