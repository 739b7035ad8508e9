"""The script is a folder with a `__main__.py`."""
