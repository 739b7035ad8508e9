"""Slurm's nodes: which of them it wants empty, and how a member of one node is kept to some of them."""

from __future__ import annotations

from collections.abc import Collection

from flowdist.engines.interface import EngineFailed
from flowdist.engines.slurm.commands import call
from flowdist.engines.slurm.states import is_drained


def drained(hosts: Collection[str]) -> set[str]:
    """Return which of these nodes Slurm wants empty."""
    if not hosts:
        return set()
    lines = call(["sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(hosts))}", "--format=%N|%T"]).splitlines()
    return {host for host, _, state in (line.partition("|") for line in lines) if is_drained(state)}


def left_out(nodelist: str) -> list[str]:
    """Return all nodes of the cluster except those of `nodelist`, such as `gpu[01-08],big1`; none if it is empty.

    sbatch's own --nodelist names nodes that a job gets all of: with one node and several names, every member would get
    the first name. To exclude the others leaves the choice among them to Slurm.

    Raises:
        EngineFailed: Slurm does not answer, or has no node of one of these names.
    """
    if not nodelist:
        return []
    wanted = set(call(["scontrol", "show", "hostnames", nodelist]).split())
    known = dict.fromkeys(call(["sinfo", "--noheader", "--all", "--Node", "--format=%N"]).split())
    if unknown := sorted(wanted - known.keys()):
        raise EngineFailed(f"-o nodelist={nodelist}: Slurm has no node {', '.join(unknown)}")
    return [name for name in known if name not in wanted]
