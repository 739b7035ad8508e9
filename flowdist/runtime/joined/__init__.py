"""The foreground process of a host that has joined the job of another host: it owns one node, and decides nothing.

`joining` finds the controller and gets a place in the job. `joined_host` runs the node, follows the news of the
controller, and connects again; it carries out the faults that reach this node.
"""
