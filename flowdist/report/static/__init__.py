"""Reports from the role graph, before anything runs: the plan, its drawing, and the explanation of a failure.

What they say about starts, restarts, seats and charges comes from `flowdist.control`: `rehearsal` drives the real
controller through a healthy job, and `happening` lets a failure happen there. Nothing is decided here.
"""
