"""Which members does an engine submit, replace, drain and cancel? A fourth pure machine, beside the job's controller.

A member is a process that an engine starts on one machine and that brings one node to the job. The machine compares the
members that the job needs with those that the engine shows, and returns the orders that bring the two together.
"""
