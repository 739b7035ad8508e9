"""A running job on the terminal."""
