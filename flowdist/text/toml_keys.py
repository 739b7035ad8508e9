"""Places of the keys in a TOML file, for messages. Parsed TOML has none, so keys are looked up line by line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

Keys = tuple[str, ...]  # keys from the outermost table to the value


class Span(NamedTuple):
    """Part of a line that names a key. Lines and columns count from 1; the part ends before `end_column`."""

    line: int = 1
    column: int = 1
    end_column: int = 2


def spans_of_keys(text: str) -> dict[Keys, Span]:
    """Return the span of each table and key that begins a line."""
    spans: dict[Keys, Span] = {}
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        start = line.index(word) + 1
        if word.startswith("["):
            key = table = _key(word) or table
        else:
            word = word.partition("=")[0].rstrip()
            key = (*table, *_key(f"{word} = 0")) if word else ()
        for length in range(1, len(key) + 1):
            spans.setdefault(key[:length], Span(number, start, start + len(word)))
    return spans


def span_of(spans: Mapping[Keys, Span], key: Keys) -> Span:
    """Return the span of a key, such as one in an inline table, or of the nearest table around it; else line 1."""
    while key and key not in spans:
        key = key[:-1]
    return spans.get(key, Span())


def _key(line: str) -> Keys:
    """Return the keys that a line of TOML names; empty for a line that is not TOML by itself, inside a longer value."""
    keys: list[str] = []
    try:
        content: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(content, dict) and content:
        key, content = next(iter(content.items()))
        keys.append(key)
    return tuple(keys)
