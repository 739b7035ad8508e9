"""Starting, forking, pausing and reaping processes on one machine.

The guardian of a node starts a spawner, which starts workers by exec or has a template fork them; `spawn_protocol`
defines the messages between agent and spawner, and `prefixes` starts the processes that become templates. `reaper`
kills every process of a node before its guardian ends. Nothing here decides which workers run: that is the agent's
part. Nothing here imports torch: a prefix does if its script does.
"""
