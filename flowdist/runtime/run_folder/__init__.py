"""The folder of a run: what flowdist writes there beside the journal, and what the verbs read from it.

`folder` makes, finds and locks it, `resume` says where a run that died has stopped, `runs` answers how a run is. The
verbs need nothing but the folder, and the control socket in it while the run is running; nothing here starts a process.
"""
