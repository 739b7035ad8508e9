"""Quotation marks around a value are removed in pairs, and once."""

from __future__ import annotations

import pytest

from flowdist.torchrun.conf import unquoted


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a", "a"),
        (" 'a' ", "a"),
        ('"a b"', "a b"),
        ("''", ""),
        ("'", "'"),
        ("'a\"", "'a\""),
        ("''a''", "'a'"),
        ("", ""),
    ],
)
def test_one_pair_is_removed(text: str, word: str) -> None:
    assert unquoted(text) == word
