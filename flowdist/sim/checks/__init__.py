"""What is demanded of a simulation: properties, bounds, expectations, liveness, and agreement of its two modes."""
