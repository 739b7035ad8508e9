"""Controller's side of the connections to agents: sessions, and the failure detector.

This folder decides what a message of an agent means: whether it is late, whether its node has to join anew, whether its
silence has lasted too long. It promises that late messages change nothing (R20), and that a node is lost only after its
lease has run out (R19). It must not judge failures, which is the task of `incidents`. Drivers carry messages and wait.
"""
