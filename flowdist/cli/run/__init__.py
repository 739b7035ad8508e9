"""Verbs that start a job or join one; the console, runs in the background, and jobs of several hosts."""
