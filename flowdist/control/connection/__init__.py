"""Controller's side of the connections to agents: sessions, and the failure detector.

This folder decides what a message of an agent means: whether it is late, and whether its node has to join anew. It also
decides which nodes are suspected or lost because their heartbeats are overdue. It promises that late messages change
nothing (R20), and that it calls a node silent only after the node's lease has run out (R19). It must not judge
failures, which is the task of `incidents`. Drivers carry the messages and wait for the deadlines.
"""
