"""Names and command lines of the pages are those of the program: imports succeed, verbs and options exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from flowdist.cli.main import VERBS, cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for place in ("", "docs/**/", "evidence/", "examples/**/") for page in ROOT.glob(f"{place}*.md"))
NEED_TORCH = {"flowdist.worker.device_mesh"}  # modules that import torch themselves
PASSED_ON = {"torchrun"}  # its options are torchrun's: tests/torchrun holds them against torch's own parser


def imports() -> Iterator[str]:
    """Yield each import of flowdist on a page, as one line of Python."""
    for page in PAGES:
        for line in re.findall(
            r"^\s*((?:from flowdist[\w.]* import|import flowdist)[^\n(#`]*)", page.read_text(), re.M
        ):
            yield line.strip()


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield each command line of flowdist on a page, with the name of the page; lines that go on are joined."""
    for page in PAGES:
        parts = page.read_text().replace("\\\n", " ").split("```")
        for number, part in enumerate(parts):  # every other one is a block of code
            begin = r"^\s*(?:\w*\$ )?" if number % 2 else r"^    (?:\w+\$ )?|`"
            for line in re.findall(rf"(?:{begin})(flowdist [a-z]+ [^\n`]*)", part, re.M):
                yield page.name, line


@pytest.mark.parametrize("line", sorted(set(imports())))
def test_a_documented_import_succeeds(line: str) -> None:
    (statement,) = ast.parse(line).body
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            importlib.import_module(alias.name)
        return
    assert isinstance(statement, ast.ImportFrom) and statement.module
    if statement.module in NEED_TORCH:
        pytest.importorskip("torch", reason="torch is not installed")
    module = importlib.import_module(statement.module)
    for alias in statement.names:
        if alias.name != "*" and not hasattr(module, alias.name):
            importlib.import_module(f"{statement.module}.{alias.name}")


@pytest.mark.parametrize(
    "module",
    sorted(
        {name for page in PAGES for name in re.findall(r"python -m ((?:flowdist|tests)\.[\w.]+)", page.read_text())}
    ),
)
def test_a_documented_module_is_there(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_there_are_imports_and_command_lines_on_the_pages() -> None:
    assert len(set(imports())) > 8 and len(list(command_lines())) > 80


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_a_documented_command_line_has_a_verb_and_options_that_exist(page: str, line: str) -> None:
    words = shlex.split(line.split("   ")[0].split(" #")[0].replace("'", "").replace('"', ""))
    verb = words[1]
    assert verb in VERBS or verb.endswith((".py", ".toml")), f"{page}: flowdist {verb}"
    if verb in PASSED_ON:
        return
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    if verb == "run" and len(words) > 2 and words[2].startswith("dist."):
        return  # TorchX's options: tests/components
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    mine = words[2 : words.index("--") if "--" in words else None]
    options = [word.split("=")[0] for word in mine if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)]
    assert not set(options) - known, f"{page}: {line}"
