"""The inputs of a worker: environment variables, command, ports, secrets and stop notices; and the errors it leaves.

The inputs follow from the worker's start order, its role and the agent's own environment. Nothing here starts a process
or decides anything.
"""
