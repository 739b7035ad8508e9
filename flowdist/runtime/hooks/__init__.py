"""The user's commands that run when an incident closes or the job ends."""
