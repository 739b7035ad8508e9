"""State of a job: one mutable `JobState` with its nodes, replicas, worlds, roles and deadlines.

The folder keeps derived data, such as counts by phase and the index of candidate nodes, equal to what a recount would
find. It must not decide: methods here record changes and look things up, and the other folders of `control` call them.
"""
