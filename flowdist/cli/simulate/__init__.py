"""`flowdist simulate` and its modes."""
