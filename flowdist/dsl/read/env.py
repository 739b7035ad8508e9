"""Reading of `env=` of a role: variables, and secrets. The graph has the source of a secret, never its value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flowdist.dsl.read.commands import is_file
from flowdist.dsl.read.fields import PLAIN, Fields
from flowdist.dsl.words import Secret
from flowdist.graph import SecretRef

Env = tuple[tuple[tuple[str, str], ...], tuple[SecretRef, ...]]


def read_env(fields: Fields, folder: Path) -> Env:
    """Return the variables and the secrets of a role's `env=`. Files of secrets are relative to `folder`.

    A variable that cannot be set adds an error, and is left out. A secret without a value at present adds a warning.
    """
    given = fields.values["env"] or {}
    if not isinstance(given, Mapping):
        fields.error("FD134", "env", "env= must be a dict", 'write env={"NAME": "value"}')
        return (), ()
    texts: list[tuple[str, str]] = []
    secrets: list[SecretRef] = []
    for name, value in given.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in f"{name}{value}":
            help = 'write env={"NAME": "value"}'
            message = f"env= has {name!r}, which cannot name a variable, or whose value has a NUL in it"
            fields.error("FD134", "env", message, help)
        elif value is None:
            help = 'write "" for an empty one, or leave it out'
            fields.error("FD134", f"env.{name}", f"env[{name!r}] is None", help)
        elif isinstance(value, PLAIN):
            texts.append((name, str(value)))
        elif not isinstance(value, Secret):
            help = f'write {{"{name}": "..."}} with a text, a number, a path or a Secret'
            fields.error("FD134", f"env.{name}", f"env[{name!r}] must be a text, not a {type(value).__name__}", help)
        elif (secret := _secret(fields, name, value, folder)) is not None:
            secrets.append(secret)
    return tuple(texts), tuple(secrets)


def _secret(role: Fields, name: str, given: Secret, folder: Path) -> SecretRef | None:
    """Return the source of the secret for the variable `name`; add an error and return None for none or two."""
    fields = role.nested("env", given)
    sources = [source for source in ("env", "file") if fields.values[source] is not None]
    if not sources and fields.is_wrong("*"):
        return None
    if len(sources) != 1:
        message = f"the secret {name} has {'two sources' if sources else 'no source'}"
        fields.error("FD138", "file", message, f'write Secret(env="{name}") or Secret(file="~/.{name.lower()}")')
        return None
    (source,) = sources
    text = fields.values[source]
    if isinstance(text, Path):
        text = str(text)
    if not isinstance(text, str) or not text or "\0" in text:
        fields.error("FD134", source, f"{source}={text!r} must be a text", f'write Secret({source}="...")')
        return None
    if source == "env":
        if not os.environ.get(text):
            _warn(fields, source, name, f"the variable {text} is not set here")
        return SecretRef(name, env=text)
    file = text if text.startswith("~") else str(folder / text)
    if not is_file(Path(file)):
        _warn(fields, source, name, f"there is no file {file} here")
    return SecretRef(name, file=file)


def _warn(fields: Fields, source: str, name: str, message: str) -> None:
    help = "flowdist run refuses to start without it"
    fields.warn("FD303", source, f"the secret {name} has no value: {message}", help)
