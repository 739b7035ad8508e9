"""Parts of one generation in macro mode: how its work advances, how long it starts up, and how it waits for nodes."""
