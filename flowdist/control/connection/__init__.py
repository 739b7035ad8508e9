"""The controller's side of its connections to agents: sessions, and the failure detector.

Decides what a message of an agent means: that it is late news, that a node has to join anew, that its silence has
lasted for too long. Drivers carry messages and wait; they decide nothing.
"""
