"""Styled output: lines in a colour, and the terminal of rich. All other text is made printable by the streams."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from flowdist.text.printable import printable
from flowdist.text.streams import raw_stream

if TYPE_CHECKING:
    from rich.console import Console


def paint(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a text on stdout or stderr, in its printable form and, on a terminal, with the style of `click.secho`."""
    click.secho(printable(text), file=raw_stream(sys.stderr if err else sys.stdout), **style)


def rich_console(*, err: bool = False, **settings: Any) -> Console:
    """Return a console of rich on stdout or stderr. The caller makes the text that it draws printable."""
    from rich.console import Console  # only for what is drawn

    return Console(file=raw_stream(sys.stderr if err else sys.stdout), highlight=False, markup=False, **settings)
