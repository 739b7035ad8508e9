"""Macro mode: weeks of a large job, computed from one change of membership to the next."""
