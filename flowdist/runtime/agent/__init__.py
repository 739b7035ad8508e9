"""The processes of a node: the guardian, and the agent that drives the pure machine."""
