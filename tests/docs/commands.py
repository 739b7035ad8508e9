"""What the pages show to be typed or saved: command lines of flowdist, and blocks of code.

A command line stands in a block of code, fenced or indented, after an optional prompt (`$ `, `host0$ `). What follows
it after three spaces explains it. A line with brackets, dots or words in capital letters is a *form*: it shows what can
be written, and cannot be typed as it is.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import click

from flowdist.cli.main import VERBS, cli

LINE = re.compile(r"^(?: {4,}|)(?:\w*\$ )?((?:flowdist [a-z]|python|srun ).*)$")
FORM = re.compile(r"\[|\.\.\.|\b[A-Z]{2,}\b(?!=)|(?<![\w-])[NAB](?!\w)")
OF_TORCH = {"torchrun"}  # its options are torchrun's: tests/torchrun compares them with torch's own parser


class Line(NamedTuple):
    """A command line of a page, without prompt and explanation."""

    page: str
    text: str

    @property
    def is_form(self) -> bool:
        """Whether the line shows what can be written, and cannot be typed."""
        return FORM.search(self.text.partition(" | ")[0].replace("FD", "fd")) is not None

    @property
    def words(self) -> list[str]:
        """The words of the line, up to a pipe."""
        return shlex.split(self.text.partition(" | ")[0])


class Block(NamedTuple):
    """A fenced block of code of a page."""

    page: str
    language: str
    text: str


def lines_of(page: str, text: str) -> Iterator[Line]:
    """Yield the command lines of a page."""
    is_fenced = False
    for line in re.sub(r"\\\n\s*", "", text).split("\n"):
        if re.match(r"\s*```", line):
            is_fenced = not is_fenced
        elif (is_fenced or line.startswith("    ")) and (found := LINE.match(line)):
            command = re.split(r"   +| +# ", found[1])[0].strip()
            if not command.startswith("flowdist") or command.split()[1] in VERBS:
                yield Line(page, command)


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page that have a language."""
    for found in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.M | re.S):
        yield Block(page, found[2], textwrap.dedent(found[3]))


def refusal(line: Line) -> str:
    """Return why the command line cannot be typed, by the parser of flowdist itself; empty if it can.

    Nothing of the command is carried out. Files need not exist.
    """
    words = line.words
    verb = words[1]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, verb
    if verb in OF_TORCH:
        return ""
    try:
        command.make_context(verb, words[2:])
    except click.exceptions.Exit:  # --help
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def unknown_options(line: Line) -> set[str]:
    """Return the options of a form that its verb does not have, short ones included."""
    words = re.sub(r"[\[\]|()]", " ", line.text).split()
    verb = words[1]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, verb
    if verb in OF_TORCH or (verb == "run" and words[2].startswith("dist.")):
        return set()
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    mine = words[2 : words.index("--") if "--" in words else None]
    return {word.split("=")[0] for word in mine if re.match(r"--?[a-zA-Z]", word)} - known
