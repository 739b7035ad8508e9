"""Deprecated name of `flowdist.worker.device_mesh`, kept for existing scripts."""

from flowdist.worker.device_mesh import all_to_all, backend, has_own_gpu, mesh

__all__ = ["all_to_all", "backend", "has_own_gpu", "mesh"]
