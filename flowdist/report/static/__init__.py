"""Reports from the role graph alone: the plan, its drawing, and the explanation of a failure.

Only `plan` asks `flowdist.control`, for the placement. All other modules are oracles: they compute from the graph what
control decides, share no code with it, and the tests compare the two.
"""
