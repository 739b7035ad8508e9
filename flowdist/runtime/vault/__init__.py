"""The vault of a node: a process that holds shards of snapshots in memory, for its own workers and for other nodes."""
