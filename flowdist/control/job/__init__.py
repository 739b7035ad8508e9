"""State of a job: nodes, replicas, worlds, roles, deadlines. Derived data equal a recount. Nothing is decided here."""
