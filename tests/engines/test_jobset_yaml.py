"""YAML of the manifests: what a reader of YAML makes of it is what was written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowdist.engines.jobset.yaml_text import to_yaml

NASTY = [
    "yes",
    "No",
    "null",
    "~",
    "1",
    "1.5",
    "1e3",
    "0x1f",
    "2026-11-23",
    "a:b",
    "-",
    "{}",
    "[]",
    "'",
    '"',
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a",
    "|",
    ">",
    "?",
    "=",
    "<<",
    "1:30",
    "/etc",
    ".inf",
    "NaN",
    "y",
]
LINES = [
    "",
    "a: b",
    "a #b",
    "- a",
    "a\n",
    "a\nb\n",
    "\na\n",
    "a\n\n",
    " a\n",
    "a\n b\n",
    "\t",
    "\u00e9",
    "\U0001f600",
    "\x85",
    "\u2028",
    "\\",
    "a\r\n",
]
TEXTS = st.text(max_size=20) | st.sampled_from(NASTY + LINES)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(),
    lambda inner: (
        st.lists(inner.filter(lambda each: not isinstance(each, list)), max_size=4)
        | st.dictionaries(TEXTS, inner, max_size=4)
    ),
    max_leaves=20,
)


def test_a_reader_gets_each_nasty_text_as_it_was_written() -> None:
    texts = NASTY + LINES
    document = {
        "list": texts,
        "values": {str(i): text for i, text in enumerate(texts)},
        "keys": dict.fromkeys(texts, 1),
    }
    assert list(yaml.safe_load_all(to_yaml([document]))) == [document]


@pytest.mark.slow
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=5), max_size=3))
@example([{"a": {"b": [{"c": "d\ne\n", "f": {}}, {"g": []}]}}])
@settings(max_examples=60, deadline=None)
def test_a_reader_gets_what_was_written(documents: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(to_yaml(documents))) == documents


def test_manifests_read_well() -> None:
    document = {
        "kind": "JobSet",
        "spec": {"names": ["a", "b"], "size": "1Gi", "on": True, "none": {}, "rules": [{"name": "x", "size": 1}]},
    }
    assert (
        to_yaml([document, {"text": "first\n  second\n"}])
        == """\
---
kind: JobSet
spec:
  names:
  - a
  - b
  size: "1Gi"
  "on": true
  none: {}
  rules:
  - name: x
    size: 1
---
text: |
  first
    second
"""
    )
