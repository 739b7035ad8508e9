"""Orders of the operator and preemptions in macro mode: nodes that the gang leaves in order, and its size.

What an order means is decided by rules of `flowdist.control`. These modules play the messages that follow from it.
"""
