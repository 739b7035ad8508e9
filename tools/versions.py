"""Print which versions of torch and the frameworks this environment has, and on what they run: for docs/install.md.

python tools/versions.py
"""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = ("torch", "transformers", "accelerate", "lightning", "datasets", "pyarrow")


def main() -> None:
    """Print one row of the table of docs/install.md, without the last column."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where = f"{gpu}, Python {platform.python_version()}"
    print(f"| {datetime.date.today()} | {where} | {' | '.join(map(version_of, PACKAGES))} |")


def version_of(package: str) -> str:
    """Return the version of an installed package; a dash if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


if __name__ == "__main__":
    main()
