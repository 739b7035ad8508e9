"""The key-value stores of generations (torch's TCPStore), each served by a process of its own.

The agent binds a socket for each generation and reports its port at once; a store host, forked from a process with
torch and no thread, serves it. Its end is reported to the pure agent; control decides what follows.
"""
