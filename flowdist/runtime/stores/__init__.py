"""The key-value stores of generations (torch's TCPStore), each served by a process of its own.

The agent binds a listening socket for each generation and reports its port at once; a store host serves the socket. A
store host is forked from a process that has torch imported, before that process has any thread. The end of a store host
is reported to the agent, and what follows from it is decided in control.
"""
