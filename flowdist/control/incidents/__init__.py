"""Failures, and what follows from them: their causes, what restarts, who is charged, how the job ends."""
