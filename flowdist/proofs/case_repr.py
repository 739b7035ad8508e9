"""Short text of a case: only the fields that differ from their defaults, so that a shrunk example is readable."""

from __future__ import annotations

from typing import Any

import msgspec


def in_short(value: Any) -> str:
    """Return `RoleSpec(name='a', max_replicas=2)`: the constructor call without fields that have their default."""
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
    """Return the constructor call of a NamedTuple."""
    defaults = value._field_defaults
    found = zip(value._fields, value, strict=True)
    parts = [f"{name}={in_short(item)}" for name, item in found if name not in defaults or defaults[name] != item]
    return f"{type(value).__name__}({', '.join(parts)})"
