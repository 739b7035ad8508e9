"""The projects that `flowdist new` writes: their files are in `templates`, those in `shared` belong to each of them.

The files have the ending `.txt` here, so that no tool takes them for a part of flowdist. `NAME` in them stands for the
name of the project, `PACKAGES` for what it needs besides flowdist, and `PARAMETERS` for those of a short job.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from flowdist.dsl.read.fields import NAME
from flowdist.errors import FlowdistError

TEMPLATES = ("ddp", "ps", "rl")
NEEDS_TORCH = ("ddp",)  # templates whose scripts import torch
# Parameters of a short job, for `flowdist prove`.
PROVED = {"ddp": "-p nodes=2 -p steps=120", "ps": "-p steps=60", "rl": "-p steps=12"}


def write_project(folder: Path, template: str) -> list[Path]:
    """Write the files of a project into a folder, and return their paths.

    Args:
        folder: The folder, which is made. Its last part is the name of the project.
        template: One of TEMPLATES.

    Raises:
        FlowdistError: The name cannot be that of a topology, or the folder has files already, or cannot be written.
    """
    name = folder.name
    if not NAME.fullmatch(name):
        message = f"'{name}' cannot be the name of a project"
        raise FlowdistError(message, help="use at most 63 lower-case letters, digits and hyphens, with a letter first")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FlowdistError(f"{folder} is there already", help="choose another name, or remove it")
        root = files("flowdist.projects").joinpath("templates")
        found = {path: text for part in ("shared", template) for path, text in _files(root.joinpath(part), Path())}
        for path, text in sorted(found.items()):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(_filled(text, name, template))
    except OSError as error:
        raise FlowdistError(f"{folder} cannot be written: {error.strerror}") from None
    return [folder / path for path in sorted(found)]


def _filled(text: str, name: str, template: str) -> str:
    packages = " torch" if template in NEEDS_TORCH else ""
    return text.replace("NAME", name).replace("PACKAGES", packages).replace("PARAMETERS", PROVED[template])


def _files(root: Traversable, below: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of each file below a folder of templates, as the project has it, and its text."""
    for found in root.iterdir():
        name = ".github" if found.name == "github" else found.name.removesuffix(".txt")
        if found.is_dir():
            yield from _files(found, below / name)
        else:
            yield below / name, found.read_text(encoding="utf-8")
