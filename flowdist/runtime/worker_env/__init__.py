"""The surroundings of a worker: environment variables, command, ports, secrets, stop notices; and the errors it leaves.

What a worker gets follows from its start order, its role and the agent's own environment. Nothing here starts a
process or decides anything.
"""
