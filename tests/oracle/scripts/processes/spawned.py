"""Programs are started past subprocess before RANK is read: os.system, posix_spawn, popen."""

import os

import probe

code = os.system('test "$LOCAL_RANK" = 0 && exit 3; exit 4')
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit $(( 5 + RANK ))"], os.environ)
spawned = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with os.popen("echo $RANK") as pipe:
    said = pipe.read()
probe.note("started")
probe.first_step(code=os.waitstatus_to_exitcode(code), spawned=spawned, said=said)
