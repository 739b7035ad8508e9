"""Slurm as an engine: each member is a Slurm job of its own with one node, so that one lost node costs one node."""
