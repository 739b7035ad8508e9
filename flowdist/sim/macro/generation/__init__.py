"""Parts of one generation in macro mode: how its work advances, and how long its members start up and stop."""
