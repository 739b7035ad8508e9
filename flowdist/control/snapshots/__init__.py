"""Snapshots in the memory of nodes (R24): which copies count, who holds them, what a generation goes on from.

`copies` records acknowledgements and losses. `keeping` decides what follows: buddies, releases, and a new generation if
the snapshot that it reads is lost. `choosing` names the snapshot that a generation goes on from. `checks` has the
invariants.
"""
