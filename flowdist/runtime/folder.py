"""The folder of a run, and the short one for its sockets where the path of the first is too long for them."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from pathlib import Path

SOCKET_PATH_MAX = 100  # Linux allows 107 bytes; the longest name in the folder has its share


def make_run_dir(base: Path, topology: str) -> Path:
    """`runs/<topology>-<yyyymmdd-hhmmss>-<4 hex>/`, with `runs/latest` pointing at it."""
    base.mkdir(parents=True, exist_ok=True)
    while True:
        name = f"{topology}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):
            (base / name).mkdir()
            break
    link = base / f".latest-{name}"
    link.symlink_to(name)
    link.rename(base / "latest")
    return (base / name).resolve()


def socket_dir(run_dir: Path, nodes: list[str]) -> Path:
    """Where the sockets of the run may be: its own folder, if their paths are short enough there."""
    longest = max([len("control.sock"), *(len(f"{name}.sock") for name in nodes)])
    if len(str(run_dir).encode()) + 1 + longest <= SOCKET_PATH_MAX:
        return run_dir
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(tempfile.mkdtemp(prefix="flowdist-", dir=base if base and len(base) < 60 else None))
