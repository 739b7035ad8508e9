"""Command lines of torchrun, as topologies with one role.

`options` has every option of torchrun, and `settle` makes the topology. No option is ignored in silence.
"""
