"""Engines: what starts the members of a job on other machines: local processes, people, or Slurm.

A member is one process on one machine, `flowdist join`, which brings one node. An engine can do four things: submit a
member, cancel it, send it a signal, and observe what has become of it. It decides nothing: `flowdist.control.fleet`
decides which member is submitted, replaced or cancelled. What an engine cannot honour of a topology is a problem with
its place in the topology's file. Every engine passes the same tests (tests/engines/test_conformance.py). `jobset` is no
engine: Kubernetes starts the members of a job that was exported to it.
"""
