"""Checks of the whole graph: contradictions between roles, and jobs that their nodes cannot hold."""
