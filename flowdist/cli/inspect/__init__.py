"""Verbs that read topologies, runs and records, and change nothing but the files that they are asked to write."""
