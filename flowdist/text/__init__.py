"""Text from elsewhere, made safe for a terminal. The package imports nothing of flowdist: errors use it, too."""
