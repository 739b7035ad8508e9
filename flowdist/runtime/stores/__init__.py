"""The key-value stores of generations (torch's TCPStore), each served by a process of its own."""
