"""Deprecated name of `flowdist.worker.device_mesh`, kept for existing scripts."""

import warnings

from flowdist.worker.device_mesh import all_to_all, backend, has_own_gpu, mesh

__all__ = ["all_to_all", "backend", "has_own_gpu", "mesh"]

warnings.warn("flowdist.parallel is deprecated: import flowdist.worker.device_mesh", DeprecationWarning, stacklevel=2)
