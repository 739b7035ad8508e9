"""Refusals of macro mode: for a job one field of the topology, for faults and rates the part of their text.

A job is accepted only if macro mode plays it exactly. What is not known here is refused.
"""
