"""The GPUs of a node: which there are, which processes use them, and which have failed.

`driver` asks NVML and never makes a CUDA context; `devices` shares a machine's GPUs among nodes; `watch` is a process
that observes them, and `guard` the agent's side of it. The controller decides what follows from a failed GPU.
"""
