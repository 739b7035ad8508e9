"""Verbs that look at topologies, runs and records, and change nothing."""
