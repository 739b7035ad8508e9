"""A socket is bound and listens before RANK is read: each rank has a port of its own."""

import os
import socket

import probe

SERVER = socket.create_server(("127.0.0.1", 0))
LEFT, RIGHT = socket.socketpair()
probe.note("bound")
rank = os.environ["RANK"]
LEFT.send(rank.encode())
probe.first_step(port=SERVER.getsockname()[1], got=RIGHT.recv(10).decode())
with socket.create_connection(SERVER.getsockname()) as client:
    client.send(rank.encode())
    accepted, _ = SERVER.accept()
    probe.done(heard=accepted.recv(10).decode())
