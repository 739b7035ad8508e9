"""Starting, forking, pausing and reaping processes on one machine.

The guardian of a node runs a spawner, which starts workers by exec or asks a fork server to fork them; `spawn_protocol`
is what they say to each other. `reaper` promises that nothing of a node is left when its guardian ends. Nothing here
decides what runs: that is the agent's part. Nothing here imports torch: a fork server does so only because the user's
`preload` names it.
"""
