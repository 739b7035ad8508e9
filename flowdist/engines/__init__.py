"""Engines: what starts the members of a job on other machines: local processes, people, or Slurm.

A member is a process, `flowdist join`, with one node. Engines submit, cancel, signal and observe; `control.fleet`
decides. All pass tests/engines/test_conformance.py. `jobset` is none: Kubernetes starts the members of its jobs.
"""
