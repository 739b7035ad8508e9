"""How large the timeline of a long run is, and how soon a browser shows it.

    python benchmarks/timeline.py --replicas 64 --incidents 1000

A gang fails so often, once a minute; the record is drawn, and headless Chromium opens the page from a file. It counts
as shown when its first frame after loading is painted. Needs Chromium on the path, or FLOWDIST_BROWSER.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from flowdist.report.record.page import timeline_page
from flowdist.report.record.timeline import timeline_of
from tests.report.browser import Browser, find_browser
from tests.report.records import crash_loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--incidents", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("there is no Chromium on the path, nor in FLOWDIST_BROWSER")
    begun = time.perf_counter()
    timeline = timeline_of(*crash_loop(args.replicas, args.incidents))
    page = timeline_page(timeline).encode()
    drawn = time.perf_counter() - begun
    print(f"{len(timeline.attempts):,} attempts, {args.incidents:,} incidents: {len(page) / 1e6:.2f} MB")
    print(f"record made, followed and drawn in {drawn:.1f} s")
    took = [open_once(program, page) for _ in range(args.trials)]
    print(f"opened in {min(took):.2f} / {statistics.median(took):.2f} / {max(took):.2f} s (min / median / max)")


def open_once(program: str, page: bytes) -> float:
    """Seconds from the address to the first frame, in a browser that has just started."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.html"
        path.write_bytes(page)
        browser = Browser(program, Path(folder) / "profile")
        try:
            begun = time.perf_counter()
            browser.open(path)
            browser.frame()
            return time.perf_counter() - begun
        finally:
            browser.close()


if __name__ == "__main__":
    main()
