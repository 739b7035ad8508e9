"""Python source that is read and not executed: its syntax tree and its symbols, without warnings.

Python warns of an invalid escape sequence such as `"\\d"` each time it parses the source, from Python 3.12 on by
default. Here the warning would name no file and come once for each reading, and where warnings are errors the source
could not be read. Python warns of the same line, with its file, when it executes the file.
"""

from __future__ import annotations

import ast
import symtable
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def parse(source: str | bytes) -> ast.Module:
    """Return the syntax tree of Python source, as `ast.parse` does, without its warnings.

    Raises:
        SyntaxError: The source is not valid Python.
        ValueError: The source has a null byte, or cannot be decoded.
        RecursionError: Its expressions are nested too deeply.
    """
    with _no_warnings():
        return ast.parse(source)


def symbols(source: str, file: str) -> symtable.SymbolTable:
    """Return the names of a module's source, as `symtable.symtable` does, without its warnings.

    Args:
        source: The source.
        file: The name of its file, for the error.

    Raises:
        SyntaxError: The source is not valid Python.
        ValueError: The source has a null byte.
    """
    with _no_warnings():
        return symtable.symtable(source, file, "exec")


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
