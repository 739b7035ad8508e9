"""Commands of roles and hooks, the macros in them, `env=` with its secrets, and `preload=`.

The graph has the source of a secret, never its value.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.dsl.read.fields import PLAIN, Fields
from flowdist.dsl.read.objects import function_of, spec_of
from flowdist.dsl.topology import WAYS
from flowdist.dsl.words import Secret
from flowdist.graph import RoleSpec, SecretRef
from flowdist.graph.warmth import PythonCommand, cold_because, python_command

MACRO = re.compile(r"\$\{([^}]*)\}")
MACROS = (
    *("role", "replica", "replica_index", "rank", "local_rank", "world_size", "attempt", "generation"),
    *("checkpoint_dir", "log_dir", "run_id", "$"),  # ${$}{x} is ${x} for the program itself
)
HOOK_MACROS = ("checkpoint_dir", "run_id")
INTERPRETERS = ("python", "python3")
Env = tuple[tuple[tuple[str, str], ...], tuple[SecretRef, ...]]


def read_command(fields: Fields, folder: Path) -> tuple[str, ...]:
    """Return the command of a role by `command=`, `script=`, `module=` or `run=`; a harmless one after an error."""
    values = fields.values
    ways = [name for name in WAYS if values.get(name) is not None]
    if len(ways) > 1:
        fields.error("FD108", ways[1], f"both {ways[0]}= and {ways[1]}= are given", f"keep one of {' and '.join(ways)}")
    if not ways and fields.is_wrong("command"):  # the file may have one that nobody understood
        return ("true",)
    if not ways:
        fields.error("FD108", "command", "it has no command", 'write command=["python", "train.py"]')
        return ("true",)
    args = split(fields, "args")
    if ways[0] == "run":
        if args:
            fields.error("FD108", "args", "args= goes with script= or module=", "a function takes no arguments")
        elsewhere = (str(folder),) if fields.path("workdir") else ()  # where the function is imported from
        return ("python", "-m", "flowdist.worker.call", function_of(fields, folder), *elsewhere)
    if ways[0] != "command":
        target = fields.path(ways[0])
        if values[ways[0]] == "":
            fields.error("FD108", ways[0], f"{ways[0]}= is empty", f"write {ways[0]}=..., or command=[...]")
        if not target:
            return ("true",)
        return ("python", target, *args) if ways[0] == "script" else ("python", "-m", target, *args)
    if args:
        fields.error("FD108", "args", "args= goes with script= or module=", "put the arguments into the command")
    command = split(fields, "command")
    if not command or not command[0].strip():
        fields.error("FD108", "command", "its command is empty", 'write command=["python", "train.py"]')
        return ("true",)
    return command


def split(fields: Fields, name: str) -> tuple[str, ...]:
    """Return the argument as words: a list as it is, a string as a shell splits it; else an error, ("true",)."""
    value: Any = fields.values.get(name)
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            fields.error("FD108", name, f"{name}={value!r} cannot be split: {error}", "close the quotation mark")
            return ("true",)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        fields.error(
            "FD134", name, f"{name}={value!r} must be a string or a list of strings", 'write ["python", "x.py"]'
        )
        return ("true",)
    return tuple(value)


def read_hook(fields: Fields, name: str, folder: Path) -> tuple[str, ...]:
    """Return the command of the job's hook `name`, empty if there is none; add errors for what cannot be run."""
    if fields.values[name] is None:
        return ()
    command = split(fields, name)
    if not command or not command[0].strip():
        fields.error("FD108", name, "its command is empty", f'write {name}=["python", "notify.py"], or leave it out')
        return ()
    for macro in macros_in(command):
        if macro not in HOOK_MACROS:
            fields.error("FD120", name, f"a hook has no macro ${{{macro}}}", did_you_mean(macro, HOOK_MACROS))
    check_found(fields, command, folder, name)
    return command


def way_of(fields: Fields) -> str:
    """Return the name of the argument that gives the role's command: `command`, `script`, `module` or `run`."""
    return next((way for way in WAYS if fields.values.get(way) is not None), "command")


def check_found(fields: Fields, command: tuple[str, ...], folder: Path, name: str) -> None:
    """Add an error at the argument `name` if the program, script or module of a command does not exist.

    Relative paths start from `folder`, in which modules are looked for, too; they are not imported. Nothing is checked
    where a macro stands for the name.
    """
    if MACRO.search(command[0]):
        return
    if command[0] not in INTERPRETERS:
        if not (is_file(folder / command[0]) if "/" in command[0] else shutil.which(command[0])):
            help = "write a path relative to the topology file, or a program on PATH"
            fields.error("FD109", name, f"command {command[0]!r} is not found", help)
        return
    target = _target(command[1:])
    if target is None or MACRO.search(target[1]):
        return
    if target[0] == "module":
        if not has_module(target[1], folder):
            fields.error("FD109", name, f"module {target[1]!r} is not found", "check its spelling, or install it")
    elif not is_file(folder / target[1]) and not is_file(folder / target[1] / "__main__.py"):
        help = f"paths are relative to {folder}"
        own = Path(fields.place(name).file).name  # the topology file is no suggestion
        beside = [path.name for path in folder.glob("*.py") if path.name != own] if folder.is_dir() else []
        near = did_you_mean(target[1], sorted(beside), otherwise="")
        fields.error("FD109", name, f"script {target[1]!r} is not found", f"{near} {help}".strip())


def is_file(path: Path) -> bool:
    """Return whether a file exists at the path; a `~` at its beginning is the home folder. False on any error."""
    try:
        return path.expanduser().is_file()
    except (OSError, RuntimeError):  # the name is too long, the folder may not be read, or the home is not known
        return False


def _target(args: Sequence[str]) -> tuple[str, str] | None:
    """Return ("script", path) or ("module", name) for arguments of Python; None for `-c`, `-`, or no words."""
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--check-hash-based-pycs":
            rest = rest[1:]
        elif not word.startswith("-"):
            return ("script", word)
        elif word == "-":
            return None
        elif not word.startswith("--") and (option := re.search(r"[cmWX]", word)):
            values = [word[option.end() :]] if word[option.end() :] else rest[:1]  # -W error, -Werror
            if option[0] in "cm":
                return ("module", values[0]) if option[0] == "m" and values else None
            rest = rest if word[option.end() :] else rest[1:]
    return None


def has_module(name: str, folder: Path) -> bool:
    """Return whether a module `a.b.c` exists, judged by files: importlib.util.find_spec would import `a` and `a.b`."""
    return name.partition(".")[0] in sys.builtin_module_names or spec_of(name, folder) is not None


def macros_in(texts: Sequence[str]) -> Iterator[str]:
    """Yield the names between `${` and `}` in the texts, in order."""
    for text in texts:
        yield from MACRO.findall(text)


def macros_of(fields: Fields, command: Sequence[str], env: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each macro in command and environment once, after the argument it stands in: `("env.X", "rank")`."""
    way = way_of(fields)
    first_of_args = {"command": len(command), "script": 2, "module": 3, "run": len(command)}[way]
    texts = [(way if i < first_of_args else "args", word) for i, word in enumerate(command)]
    texts += [(f"env.{name}", value) for name, value in env]
    return list(dict.fromkeys((argument, macro) for argument, text in texts for macro in macros_in([text])))


def read_env(fields: Fields, folder: Path) -> Env:
    """Return the variables and secrets of `env=`; errors for what cannot be set, warnings for secrets without value."""
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


def read_preload(fields: Fields, command: tuple[str, ...], workdir: Path) -> tuple[str, ...]:
    """Return the modules in the role's `preload=`; add errors for unknown ones. Its workers run in `workdir`."""
    python, folder = python_command(command), workdir
    if isinstance(python, PythonCommand) and not python.is_module:
        folder = (workdir / python.target).parent
    names = fields.words("preload")
    for i, name in enumerate(names):
        if not has_module(name, folder):
            is_text = isinstance(fields.values["preload"], str)
            place = fields.place("preload") if is_text else fields.element("preload", i)
            help = "check its spelling, or install it"
            fields.error("FD109", "preload", f"module {name!r} is not found", help, place)
    return names


def warn_if_cold(fields: Fields, spec: RoleSpec) -> None:
    """Add a warning if the role has `preload=` or `warm=True`, but its workers cannot be forked (FD305)."""
    asked = "preload" if fields.values["preload"] else "warm" if fields.values["warm"] else ""
    if asked and not fields.is_wrong(*WAYS) and (why := cold_because(spec, sys.executable, sys.executable)):
        help = "leave it out, or see docs/warm_starts.md"
        fields.warn("FD305", asked, f"{asked}= has no effect, because workers start cold: {why}", help)
