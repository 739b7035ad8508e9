"""Checks of a compiled graph as a whole: contradictions between roles, and jobs for which the nodes have no room."""
