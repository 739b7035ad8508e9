"""What `make test` leaves to `make test-all`: cases that are marked slow, and most examples of long campaigns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def slow(cases: Iterable[Any]) -> list[Any]:
    """Return the cases, for `pytest.mark.parametrize`, as such that only `make test-all` runs. Tuples are spread."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def few(cases: Iterable[Any], count: int = 2) -> list[Any]:
    """Return the cases, all but the first `count` of them marked as `slow` does."""
    quick = list(cases)
    return [*quick[:count], *slow(quick[count:])]


def examples(few: int, many: int) -> int:
    """Return how many examples Hypothesis draws: `few` of them in `make test`, `many` in `make test-all`."""
    return many if os.environ.get("TEST_ALL") else few
