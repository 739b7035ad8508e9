"""Verbs that tell a running job what to do."""
