"""`flowdist simulate`: one run, campaigns of many seeds, and macro mode."""
