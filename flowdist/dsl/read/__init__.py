"""Readers of arguments, one file a subject: each makes a value of the graph, or keeps a problem with its place."""
