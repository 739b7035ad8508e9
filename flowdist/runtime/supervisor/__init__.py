"""The foreground process of the host with the controller: the supervisor, and what every foreground process needs.

It owns all processes of flowdist on its host, and leaves nothing behind. It makes no decisions about the job.
"""
