"""`environment.json` in the folder of a run: when, where, how and with which versions the run was started.

A resumed run has an entry for each start. Of secrets the file has the names and sources alone; a value in the command
line is masked.
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
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.saved_files import Environment, read_saved

ENVIRONMENT = "environment.json"


def write_environment(run_dir: Path, graph: RoleGraph, mask: Callable[[str], str], flowdist: str) -> None:
    """Add an entry for this start of the run to `environment.json`; a missing or damaged file is replaced."""
    path = run_dir / ENVIRONMENT
    saved = read_saved(path, Environment)
    starts = [] if saved is None else saved["starts"]
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
    """Return the installed version of torch without importing torch; None if torch is not installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
