"""Faults against real processes and connections."""
