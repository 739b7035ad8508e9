"""Engines: what starts the members of a job on other machines: local processes, people, or Slurm.

A member is one process, `flowdist join`, which brings one node. An engine submits, cancels, signals and observes
members; `flowdist.control.fleet` decides. All pass tests/engines/test_conformance.py. `jobset` is no engine: Kubernetes
starts the members of an exported job.
"""
