"""The state of training in the memory of nodes: what a worker hands to the vault of its node, and gets back.

Every worker imports `snapshot` and `vault_link`, which need the standard library alone; `dcp` is the same as a storage
of `torch.distributed.checkpoint`.
"""
