"""Virtual time, simulated nodes and links, and the loop that drives the controller."""
