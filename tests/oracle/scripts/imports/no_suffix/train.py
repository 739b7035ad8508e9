"""The script's file has no suffix."""
