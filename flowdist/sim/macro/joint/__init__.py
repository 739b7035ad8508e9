"""Joint worlds in macro mode: several roles of one kind form, restart and end as one gang.

The gang has the replicas of all roles of the world, in the order of the graph. Each role keeps its own minimum, size,
time to wait for nodes, and restart policy.
"""
