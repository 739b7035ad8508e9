"""Build the sdist and the wheel, check their metadata, and install flowdist from each, from its folder and from git.

    python tools/check_package.py [--folder build/package]

Each installation has a fresh environment, in which `flowdist --version` and a simulation have to run. `make package`
calls this; the tools that it needs are those of the extra `release`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPOLOGY = """
from flowdist import Restart, Topology, Workload

t = Topology("installed", nodes=2)
t.role("trainer", ["true"], replicas=2, restart=Restart("role", max_restarts=1), workload=Workload(steps=10))
"""


def built(folder: Path) -> tuple[Path, Path]:
    """Build into the folder, check the metadata, and return the sdist and the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    return sdist, wheel


def try_installed(source: str) -> None:
    """Install flowdist from a source that pip knows, into an environment of its own, and run two of its commands."""
    with tempfile.TemporaryDirectory(prefix="flowdist-package-") as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True)
        pip = (str(folder / "env/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--constraint", str(ROOT / "constraints.txt"), source, cwd=folder)
        (folder / "topology.py").write_text(TOPOLOGY)
        flowdist = str(folder / "env/bin/flowdist")
        run(flowdist, "--version", cwd=folder)
        run(flowdist, "simulate", "--fail", "node1@2s", cwd=folder)


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a command; if it fails, print its output and end this program with exit code 1."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)} ended with exit code {done.returncode}")


def main() -> None:
    """Check every way of installing that docs/install.md names, with a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/package")
    folder = parser.parse_args().folder
    began = time.monotonic()
    sdist, wheel = built(folder)
    print(
        f"{time.monotonic() - began:4.0f} s  {sdist.name} and {wheel.name} are built, their metadata is right",
        flush=True,
    )
    ways = {"the folder": str(ROOT), "the sdist": str(sdist), "the wheel": str(wheel)}
    if shutil.which("git") is None or not (ROOT / ".git").exists() or (ROOT / ".git").stat().st_uid != os.geteuid():
        print("        not tried: git, which clones from a repository of the same user alone", flush=True)
    else:
        ways["git"] = f"git+{ROOT.as_uri()}"
    for name, source in ways.items():
        began = time.monotonic()
        try_installed(source)
        print(f"{time.monotonic() - began:4.0f} s  flowdist was installed from {name}, and runs", flush=True)


if __name__ == "__main__":
    main()
