"""Text from elsewhere, made safe for a terminal. This package imports nothing of flowdist, so that errors may use it."""
