"""Macro mode: weeks of a large job, computed from one change of membership to the next.

Gangs are computed in closed form between two changes; roles beside them are played step by step. Decisions are made by
the rules of `flowdist.control`, called with macro mode's own numbers. A job that cannot be computed truly is refused.
"""
