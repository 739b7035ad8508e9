"""The vault of a node: a process that holds shards of snapshots in memory, for its own workers and for other nodes.

The agent listens at a Unix socket that only this user may open, and starts the process, which gets that descriptor, the
token of the job and the address at which other nodes reach this one (`runtime.agent.vault_link`). It dies with the
agent, whose end is that of the node, and with it all copies.

The agent connects to that socket, sends `Attach`, and gets `Listening` with the port for other vaults, then one `Held`
for each copy on this node. From then on it gets `Held` and `Broken`, and sends `Buddies` and `Release`: all in
`messages`. A buddy's copies are reported by its own vault to its own agent.

Workers have the socket's path in FLOWDIST_VAULT and the name of their world in FLOWDIST_WORLD. FLOWDIST_SNAPSHOT is the
path of a file with the snapshot from which their generation goes on, or empty if there is none: JSON with `generation`,
`step`, `world_size` and `holders` (by rank: pairs of a node and the "host:port" of its vault, the best first).
`flowdist.worker.snapshots` reads them.

`memory` has the blocks, `copies` what is held in them, `vault` serves the sockets, `buddies` sends copies to other
nodes, `peers` does one transfer, `limits` says how much memory there is.
"""
