"""`flowdist.launch(function, args, procs=4)`: a function on several processes, from a script or a notebook.

`caller` is the part in the calling process, `supervisor_main` the process that runs the job, `worker_main` the program
of its workers. The results come back through files in the folder of the run.
"""
