"""The controller process: a driver for the pure controller that serves agents, other hosts, operators and metrics.

It writes the journal before it carries out an effect (R21). Which hosts may join, and under which names, is the only
thing that it determines itself; every decision about the job is made by the pure controller, in `flowdist.control`.
"""
