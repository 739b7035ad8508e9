"""The foreground process of the host with the controller: the supervisor, and what every foreground process needs.

`host_process.py` has what both do: they own all processes of flowdist on their host, mirror the controller from its
journal, show on the terminal what happens, and leave nothing behind. They make no decisions about the job.
"""
