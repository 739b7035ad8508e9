"""Starting, forking, pausing and reaping processes on one machine; the agent decides which workers run.

A node's guardian starts a spawner, which execs workers or has templates, started by `prefixes`, fork them. `reaper`
kills all processes of a node before its guardian ends. Nothing here imports torch: a prefix does if its script does.
"""
