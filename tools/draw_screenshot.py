"""Make the picture of the README, docs/timeline.png: the timeline of a real run of the demo, as a browser shows it.

    python tools/draw_screenshot.py

The run kills a parameter server and a trainer. It needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs/timeline.png"
FAULTS = ("--fail", "ps/0@checkpoint=ps,4+500ms", "--fail", "trainer/1@step=trainer,2000")
SIZE = "1280,600"


def main() -> None:
    """Run the job, draw its timeline, and take the picture."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("install Chromium first")
    with tempfile.TemporaryDirectory(prefix="flowdist-screenshot-") as temporary:
        folder, flowdist = Path(temporary), (sys.executable, "-m", "flowdist")
        runs = ("--runs", str(folder / "runs"))
        subprocess.run([*flowdist, "run", str(ROOT / "examples/word2vec/topology.py"), *FAULTS, *runs], check=True)
        page = folder / "timeline.html"
        subprocess.run([*flowdist, "timeline", str(folder / "runs/latest"), "-o", str(page)], check=True)
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}")
        home = f"--user-data-dir={folder / 'browser'}"
        command = [browser, *options, home, "--virtual-time-budget=3000", f"--screenshot={TARGET}", page.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
