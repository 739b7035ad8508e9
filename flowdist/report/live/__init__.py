"""Reports of a running job: the status, and the picture on a terminal."""
