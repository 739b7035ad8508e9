"""The state of a job: one mutable `JobState`, its deadlines, and the index of nodes that may take a replica."""
