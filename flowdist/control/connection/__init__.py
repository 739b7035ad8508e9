"""The controller's side of its connections: sessions of agents, and the failure detector."""
