"""Macro mode: weeks of one large gang, computed from one change of membership to the next.

Between two changes the gang is computed in closed form. Decisions are made by the rules of `flowdist.control`, called
with macro mode's own numbers. A job that cannot be computed truly is refused.
"""
