"""The processes of a node: its guardian, its spawner, and the agent process that drives the pure agent.

The guardian is the parent of the other two, and kills every process of the node when one of them ends.
"""
