"""The script forks before RANK is read, and after; hooks of forks run for its own forks alone."""

import os

import probe

FORKS = []
os.register_at_fork(
    before=lambda: FORKS.append("before"),
    after_in_parent=lambda: FORKS.append("parent"),
    after_in_child=lambda: FORKS.append("child"),
)
probe.note("registered", forks=list(FORKS))
rank = os.environ["RANK"]
probe.note("ranked", forks=list(FORKS))
child = os.fork()
if child == 0:
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
probe.first_step(forks=FORKS, code=code, rank=rank)
