"""`flowdist.launch(function, args, procs=4)`: the calling process, its workers, and its supervisor."""
