"""Starting, forking, pausing and reaping processes on one machine.

The guardian of a node starts a spawner, which starts workers by exec or has a fork server fork them; `spawn_protocol`
defines the messages between agent, spawner and fork servers. `reaper` kills every process of a node before its guardian
ends. Nothing here decides which workers run: that is the agent's part. Nothing here imports torch: a fork server does
so only if torch is among the modules to preload.
"""
