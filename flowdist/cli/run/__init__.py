"""Verbs that start a job or join one, and what they share: the console, the background, the meeting of hosts."""
