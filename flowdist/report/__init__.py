"""What people look at: the plan and its restart table, and the summary of a run."""
