"""The foreground process of a host: the supervisor on the controller's host, and a joined host on every other one.

`host_process.py` has what both do: they own all processes of flowdist on their host, mirror the controller from its
journal, show on the terminal what happens, and leave nothing behind. They make no decisions about the job.
"""
