"""The program of a fork server, started by its path: `-m` would change the sys.flags or sys.path of forked workers."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file
sys.path.insert(0, __file__.rpartition("/flowdist/runtime/")[0])

from flowdist.runtime.processes import fork_server, run_main

del sys.path[0]
request = fork_server.serve(int(sys.argv[1]), int(sys.argv[2]))
run_main.run(request)
