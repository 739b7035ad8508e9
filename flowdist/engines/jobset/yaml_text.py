"""Documents as YAML for people: mappings in their order, texts of several lines as blocks, quotes only where needed.

PyYAML quotes what YAML 1.1 would not read as text, but kubectl's reader takes `y` for true, and `1e3` for a number. So
a text goes without quotes only if it looks like a name or a path. Equal documents give equal bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

import yaml

Document = dict[str, Any]

# What may stand without quotes: it begins with a letter or a /, and has nothing that YAML reads as more than text.
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./-]|:(?=[\w./-]))*", re.ASCII)
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"}  # not text for some reader


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's writer that writes the same list twice where it stands twice, instead of a reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(documents: Iterable[Document]) -> str:
    """Return the documents as YAML, each after a line `---`."""
    form: dict[str, Any] = {"explicit_start": True, "sort_keys": False, "width": sys.maxsize}
    return str(yaml.dump_all(documents, Dumper=_Dumper, **form))


def _text(dumper: Any, text: str) -> Any:
    """Represent a text. One of several lines that no block can hold is quoted by PyYAML all the same."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    style = None if is_plain else "|" if text.endswith("\n") else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
