"""flowdist: declare multi-role distributed training, run it elastically, test its failures before they happen.

The names that a topology file uses, such as `Topology`, and `launch` are imported on first use, so that `import
flowdist.worker` in a training script imports nothing but the standard library.
"""

from __future__ import annotations

from flowdist._version import __version__

TYPE_CHECKING = False  # typing is imported by no worker that does not need it
if TYPE_CHECKING:
    from flowdist.dsl import Node, On, Resources, Restart, Role, Secret, Snapshots, Template, Topology, Workload
    from flowdist.launching.caller import launch

WORDS = ("Node", "On", "Resources", "Restart", "Role", "Secret", "Snapshots", "Template", "Topology", "Workload")
__all__ = [
    "Node", "On", "Resources", "Restart", "Role", "Secret", "Snapshots", "Template", "Topology", "Workload",
    "__version__", "launch",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name of `__all__` when it is first used (PEP 562); raise AttributeError for any other name."""
    # Every worker imports this package: the DSL and msgspec would make its start slower.
    if name == "launch":
        from flowdist.launching.caller import launch  # asyncio and the runtime: only for callers of launch

        return launch
    if name in WORDS:
        import flowdist.dsl  # heavy: only for topology files

        return getattr(flowdist.dsl, name)
    raise AttributeError(f"module 'flowdist' has no attribute {name!r}")
