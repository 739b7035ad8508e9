"""Documents as YAML for people: mappings in their order, texts of several lines as blocks, quotes only where needed.

The writer knows dicts, lists, texts, integers and booleans, which is all that manifests have. Equal documents give
equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = dict[str, Any]

# What may stand without quotes: it begins with a letter or a /, and has nothing that YAML reads as more than text.
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./-]|:(?=[\w./-]))*", re.ASCII)
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"}  # not text in YAML 1.1
_BLOCK = re.compile(r"[\x20-\x7e\n]*\n")  # fits a block: it ends with a newline, and has no control characters


def to_yaml(documents: Iterable[Document]) -> str:
    """Return the documents as YAML, each after a line `---`."""
    return "".join("---\n" + "\n".join(_mapping(each, "")) + "\n" for each in documents)


def _mapping(value: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, each in value.items():
        lines += _entry(f"{indent}{_text(key)}:", each, indent)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    """Return the lines of `head` with its value: on the same line, or indented below it."""
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, indent + "  ")]
    if isinstance(value, list | tuple) and value:
        return [head, *_items(value, indent)]
    if isinstance(value, str) and "\n" in value and _BLOCK.fullmatch(value) and value.strip() and _is_clean(value):
        return [f"{head} |", *(f"{indent}  {line}" if line else "" for line in value[:-1].split("\n"))]
    return [f"{head} {_scalar(value)}"]


def _items(value: Sequence[Any], indent: str) -> list[str]:
    """Return the lines of a list, whose dashes stand below the first letter of its key."""
    lines: list[str] = []
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *rest = _mapping(each, indent + "  ")
            lines += [f"{indent}- {first[len(indent) + 2 :]}", *rest]
        else:
            lines += [f"{indent}- {_scalar(each)}"]
    return lines


def _is_clean(text: str) -> bool:
    """Return whether a block can hold the text: its first line gives the indent, and newlines at its end are lost."""
    return not text.startswith((" ", "\n")) and not text.endswith("\n\n")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int):
        return json.dumps(value)
    if value == {} or value == [] or value == ():
        return "{}" if isinstance(value, Mapping) else "[]"
    raise TypeError(f"manifests have no {type(value).__name__}")


def _text(value: str) -> str:
    """Return a text without quotes if no reader can take it for anything else, else in double quotes."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return f'"{"".join(map(_character, value))}"'


def _character(each: str) -> str:
    """Return a character as it stands in double quotes; all but printable ASCII is escaped."""
    if each in '"\\':
        return f"\\{each}"
    code = ord(each)
    if 0x20 <= code < 0x7F:
        return each
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
