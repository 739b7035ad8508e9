"""To be replaced."""
