"""Readers of arguments, one file per subject. Each returns a value of the graph, and reports problems at their places.

A reader never raises for a wrong argument: it adds a problem and returns a value that causes no further problems, so
that one mistake does not hide the others.
"""
