"""The GPUs of a node: which there are, which processes use them, and which have failed.

`driver` asks the driver through NVML and never makes a CUDA context; `devices` shares the GPUs of a machine among its
nodes; `watch` is a process that observes them while a job runs, and `guard` the agent's side of that process. A GPU
that has failed is reported to the controller, which decides what follows.
"""
