"""The folder of a run: what flowdist writes there beside the journal, and what its commands read there.

`folder` makes, finds and locks it, `resume` finds the point at which a dead run is resumed, `runs` returns a run's
state. Commands need only the folder, and its control socket while the run is running. Nothing here starts a process.
"""
