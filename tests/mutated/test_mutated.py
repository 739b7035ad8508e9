"""Inputs with one mistake each: no exception reaches the command line but its own errors, and none takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.choosing import few
from tests.mutated.cases import KINDS, defects

BATCH = 10  # cases of a test


@pytest.mark.parametrize("batch", few(range(15), 1))
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_with_a_mistake_is_answered_in_words(kind: str, batch: int, tmp_path: Path) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert list(defects(kind, number, folder)) == []
