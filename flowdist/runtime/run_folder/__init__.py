"""The folder of a run: what flowdist writes there beside the journal, and what its commands read there.

`folder` makes, finds and locks the folder, `resume` finds the point at which a run that died is resumed, and `runs`
returns the state of a run. Commands such as `flowdist status` need nothing but the folder, and the control socket in it
while the run is running. Nothing here starts a process.
"""
