"""Labs of tests, or the reason why there are none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.network import Lab, LabUnavailable

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Bring up a lab with these names and options; it ends with the test.

    The test is skipped, with the reason, where the kernel lets nobody make one.
    """
    with contextlib.ExitStack() as stack:

        def make(*names: str, **options: Any) -> Lab:
            try:
                return stack.enter_context(Lab(tmp_path, names or ("h0", "h1", "h2"), **options))
            except LabUnavailable as error:
                pytest.skip(f"no lab: {error}")

        yield make


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    """Three hosts, h0 to h2."""
    return make_lab()
