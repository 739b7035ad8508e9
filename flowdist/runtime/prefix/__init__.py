"""One prefix: a node runs the user's script once, up to the first moment at which ranks may differ, and forks there.

`template` is the process that runs the script. It is the user's own command, in which `boot/sitecustomize.py` has set
hooks before the script begins (`watch`, `environment`). The hooks tell reads, which all ranks share, from what a rank
has to do itself: reading its rank, opening a socket, writing a file, drawing entropy. At the first of these, the
*split*, the process stops and forks the workers, which return from the very call. A restart forks again from there, if
what the script has read until then is still the same (`observations`). A process that must not be forked
(`fork_safety`) ends without a trace, and the workers start cold.

The modules of this folder run in the user's process, before the user's code: they import nothing but modules that the
interpreter has loaded anyway or that are written in C, and each other.
"""
