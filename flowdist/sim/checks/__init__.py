"""Conditions on a simulation: properties, bounds, expectations, liveness, and points that a campaign should reach.

Checks read a simulation or its result, and change nothing.
"""
