"""Starting, forking, watching and reaping processes."""
