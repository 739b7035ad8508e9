"""What a fork server runs, by its path: `-m` would leave a mark on sys.flags or sys.path that workers could see."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file
sys.path.insert(0, __file__.rpartition("/flowdist/runtime/")[0])

from flowdist.runtime.processes import fork_server
from flowdist.runtime.processes import run_main as as_main

del sys.path[0]
request = fork_server.serve(int(sys.argv[1]), int(sys.argv[2]))
as_main.run(request)
