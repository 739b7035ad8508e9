"""Verbs that start a job or take part in one."""
