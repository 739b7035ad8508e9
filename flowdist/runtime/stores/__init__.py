"""The key-value stores of generations (torch's TCPStore), each served by a process of its own.

The agent binds a listening socket for each generation and reports its port at once; a process, the store host, serves
the socket. A store host is forked from a process that has torch imported and no thread. The end of a store host is
reported to the pure agent; control decides what follows from it.
"""
