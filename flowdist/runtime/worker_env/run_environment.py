"""`environment.json` in the folder of a run: with which versions, where, when and how it was started, each time anew.

Of secrets it has the names and their sources; a value that stands in the command line is masked.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flowdist.graph import RoleGraph
from flowdist.runtime.run_folder.atomic import write_atomically

ENVIRONMENT = "environment.json"


def write_environment(run_dir: Path, graph: RoleGraph, mask: Callable[[str], str], flowdist: str) -> None:
    """Add this start to the file; a resumed run has one for each. `flowdist` is its version."""
    path = run_dir / ENVIRONMENT
    try:
        starts = json.loads(path.read_text())["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        starts = []
    content = {"format": 1, "kind": "environment", "starts": [*starts, _this_start(graph, mask, flowdist)]}
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def _this_start(graph: RoleGraph, mask: Callable[[str], str], flowdist: str) -> dict[str, Any]:
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "user": _user(),
        "argv": [mask(word) for word in sys.argv],
        "cwd": mask(str(Path.cwd())),
        "flowdist": flowdist,
        "python": platform.python_version(),
        "python_executable": sys.executable,
        "torch": _torch_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "secrets": [
            {"role": role.name, "name": secret.name, "source": secret.env or secret.file}
            for role in graph.roles
            for secret in role.secrets
        ],
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _torch_version() -> str | None:
    """From what is installed: torch itself is not imported for it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
