"""Reports from the role graph alone: the plan, its drawing, and the explanation of a failure.

Only `plan` asks `flowdist.control`, for the placement. All other modules are oracles: they compute from the graph what
control decides, and share no code with it. The tests compare the two.
"""
