"""TorchX's built-in components as functions that return a `Topology`."""

from flowdist.components.builtins import Size, ddp, names_of, parse_j, spmd

__all__ = ["Size", "ddp", "names_of", "parse_j", "spmd"]
