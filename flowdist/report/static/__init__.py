"""Reports from the role graph, before anything runs: the plan, its drawing, and the explanation of a failure.

Nothing is decided here: what they say comes from the real controller, driven in `rehearsal` and `happening`.
"""
