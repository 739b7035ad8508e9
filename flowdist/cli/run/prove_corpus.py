"""Corpus of a proof: a file of points that have shown something, which are tried first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from flowdist.errors import FlowdistError
from flowdist.prove.points import Point


class Corpus:
    """File of points, one JSON object per line, with the script and what was found; the oldest first.

    Args:
        path: The file, which need not exist; None: nothing is kept.
        script: The script, or topology, whose points count.

    Raises:
        FlowdistError: The file cannot be read, or has something else.
    """

    def __init__(self, path: Path | None, script: str) -> None:
        self._path, self._script = path, script
        try:
            lines = path.read_text().splitlines() if path is not None and path.exists() else []
            read = [json.loads(line) for line in lines]
            self._known = [str(each["point"]) for each in read if each["script"] == script]
        except (OSError, ValueError, KeyError, TypeError):
            help = "name another file; `flowdist simulate` has a corpus of its own"
            raise FlowdistError(f"--corpus {path}: not a file of points", help=help) from None

    def first(self, points: Iterable[Point]) -> list[Point]:
        """Return all of these points, those that are in the file before the others."""
        return sorted(points, key=lambda point: point.name not in self._known)

    def keep(self, point: str, kinds: Iterable[str]) -> None:
        """Write down that a point has shown something, if that is not known."""
        kinds = list(kinds)
        if self._path is not None and kinds and point not in self._known:
            self._known.append(point)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"script": self._script, "point": point, "found": kinds}) + "\n")
