"""The built-in components of TorchX, as functions that return a `Topology`.

They use only what a topology file can use, and run nothing.
"""

from flowdist.components.builtins import Size, ddp, names_of, parse_j, spmd

__all__ = ["Size", "ddp", "names_of", "parse_j", "spmd"]
