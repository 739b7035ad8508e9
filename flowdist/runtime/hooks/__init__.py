"""The user's hook: a command that runs when an incident closes and when the job ends.

`hooks` is the supervisor's side, `hook_runner` the process that runs the commands. A hook gets a JSON object on its
stdin and can neither delay nor fail the job.
"""
