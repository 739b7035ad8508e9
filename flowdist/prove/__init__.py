"""`flowdist prove`: the user's own script, killed at every point that matters, and compared with a run without a kill.

One job is started and never ends: each *run* of the script begins with an empty folder, is killed at its points, and is
held when all of its ranks have ended. Then all workers are killed, and the next run begins with a warm restart. `lane`
drives that. The workers ask for leave before they begin and before each call that changes a file: `in_worker` runs
inside of them, `calls` is the kernel's side of it.

The pure part knows no process: `history` has what was seen of a run, `watched` what the runs without a kill have shown,
`points` which kills there are, `compare` the findings, `contents` reads saved files, `words` says it to people.
"""
