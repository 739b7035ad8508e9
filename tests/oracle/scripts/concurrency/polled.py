"""An epoll, a selector and inotify's kin are made before RANK is read: each rank watches its own files."""

import os
import select
import selectors

import probe

READ, WRITE = os.pipe()
EPOLL = select.epoll()
EPOLL.register(READ, select.EPOLLIN)
SELECTOR = selectors.DefaultSelector()
SELECTOR.register(READ, selectors.EVENT_READ)
probe.note("made")
rank = int(os.environ["RANK"])
before = EPOLL.poll(0)
if rank == 1:
    os.write(WRITE, b"x")
probe.first_step(rank=rank)
probe.done(before=before, ready=len(EPOLL.poll(0)), selected=len(SELECTOR.select(0)))
