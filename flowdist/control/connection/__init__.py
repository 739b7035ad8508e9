"""Controller's side of the connections to agents: sessions, and the failure detector.

Late messages change nothing (R20), and a node is called silent only after its lease has run out (R19). This folder must
not judge failures, which is the task of `incidents`. Drivers carry the messages and wait for the deadlines.
"""
