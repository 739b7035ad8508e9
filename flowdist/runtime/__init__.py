"""The real runtime: the same decisions as in the simulator, carried out on processes. Needs Linux."""
