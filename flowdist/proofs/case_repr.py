"""Cases in short: what differs from the defaults, so that a shrunk example can be read."""

from __future__ import annotations

from typing import Any

import msgspec


def in_short(value: Any) -> str:
    """`RoleSpec(name='a', max_replicas=2)`: fields that have their default are left out."""
    if isinstance(value, msgspec.Struct):
        return _call(type(value).__name__, value, msgspec.structs.fields(type(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _named(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(in_short(item) for item in value)}]"
    return repr(value)


def _call(name: str, value: msgspec.Struct, fields: tuple[msgspec.structs.FieldInfo, ...]) -> str:
    found = [(field.name, getattr(value, field.name), field.default) for field in fields]
    return f"{name}({', '.join(f'{key}={in_short(item)}' for key, item, default in found if item != default)})"


def _named(value: Any) -> str:
    """Of a NamedTuple."""
    defaults = value._field_defaults
    found = [(name, item) for name, item in zip(value._fields, value, strict=True)]
    parts = [f"{name}={in_short(item)}" for name, item in found if name not in defaults or defaults[name] != item]
    return f"{type(value).__name__}({', '.join(parts)})"
