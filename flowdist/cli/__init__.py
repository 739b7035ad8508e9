"""The command line: one file per verb, or for a few alike; `shared` imports none of them.

A verb decides nothing about a job. Heavy imports stand inside functions, so that `--help` is quick. A FlowdistError
ends the verb with a message and an exit code, so functions here do not list it.
"""

COMPLETION = "_FLOWDIST_COMPLETE"  # a shell sets it to complete what the user types: docs/install.md
