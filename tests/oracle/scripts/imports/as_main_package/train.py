"""`-m package` runs `package/__main__.py`."""
