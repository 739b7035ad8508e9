"""Which replica runs on which node, and which nodes and replicas do not go together."""
