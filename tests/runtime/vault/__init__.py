"""The vault: real processes, and its memory alone."""
