"""The script forks a child at import that lives on and answers through a pipe."""

import os

import probe

READ, WRITE = os.pipe()
CHILD = os.fork()
if CHILD == 0:
    os.write(WRITE, f"{os.getppid()}".encode())
    os._exit(0)
probe.note("forked")
rank = os.environ["RANK"]
answer = os.read(READ, 20).decode()
code = os.waitpid(CHILD, 0)[1]
probe.first_step(rank=rank, parent_is_own=answer == str(os.getpid()), code=code)
