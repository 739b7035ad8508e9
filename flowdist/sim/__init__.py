"""The same controller and agents as in production, in virtual time, with failures."""
