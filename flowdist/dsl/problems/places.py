"""Places in the user's file: each argument of each call of the DSL, at which problems are reported.

The position of a call comes from the bytecode of its frame (`co_positions`, Python 3.11). The position of an argument
comes from the syntax tree of the file. Without the file, as in a notebook that was closed, only the line is known.
"""

from __future__ import annotations

import ast
import linecache
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from opcode import opname
from types import CodeType, FrameType
from typing import NamedTuple


class Place(NamedTuple):
    """Part of one line of a file. Lines and columns count from 1; `end_column` is that after the last character."""

    file: str
    line: int
    column: int = 1
    end_column: int = 1


COMMAND_LINE = "<command line>"
CLI = Place(COMMAND_LINE, 1)


class CallSite:
    """One call in the user's file. The places of its arguments are computed only when a problem needs them.

    `positional` are the names of the parameters that may be given by position, in order. `code` has the call, at the
    index `instruction`; None, as for the command line: every place is the line alone, from 1.
    """

    def __init__(
        self, file: str, line: int, positional: tuple[str, ...], code: CodeType | None = None, instruction: int = 0
    ) -> None:
        self.file, self.line = file, line
        self.renamed: dict[str, str] = {}  # misspelt arguments: the name that was meant, and that in the file
        self.lost_arguments = False  # whether the call had arguments that nobody understood
        self._positional, self._code, self._instruction = positional, code, instruction

    def place(self, argument: str = "") -> Place:
        """Return the place of an argument's value, or of the called name if the call does not have that argument."""
        call = self._call()
        if call is None:
            return Place(self.file, self.line)
        keyword = self._keyword(argument)
        node: ast.AST = keyword.value if keyword is not None else call.func
        if argument in self._positional and (index := self._positional.index(argument)) < len(call.args):
            node = call.args[index]
        return _place(self.file, node)

    def element(self, argument: str, index: int) -> Place:
        """Return the place of one element of an argument that is written as a list or tuple, else of all of it."""
        value = getattr(self._keyword(argument), "value", None)
        if isinstance(value, ast.List | ast.Tuple) and index < len(value.elts):
            return _place(self.file, value.elts[index])
        return self.place(argument)

    def keyword(self, argument: str) -> Place:
        """Return the place of an argument with its name, such as `cpus=3`, or as `place` does if it has none."""
        keyword = self._keyword(argument)
        return _place(self.file, keyword) if keyword is not None else self.place(argument)

    def entry(self, argument: str, key: str) -> Place:
        """Return the place of a key's value in an argument that is written as a dict with it, else of all of it."""
        given = getattr(self._keyword(argument), "value", None)
        for name, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ():
            if isinstance(name, ast.Constant) and str(name.value) == key:
                return _place(self.file, value)
        return self.place(argument)

    def _keyword(self, argument: str) -> ast.keyword | None:
        call, name = self._call(), self.renamed.get(argument, argument)
        return next((each for each in call.keywords if each.arg == name), None) if call is not None else None

    def _call(self) -> ast.Call | None:
        """Return the syntax node of the call; None if its source is not known."""
        if self._code is None:
            return None
        _, line, _, column = _positions(self._code)[self._instruction]
        return _calls(self.file).get((line, column))


def call_site(positional: tuple[str, ...], depth: int = 2) -> CallSite:
    """Return the call in the user's code by which the running function was called.

    `positional` are the names of the parameters that may be given by position, in order. `depth` is the number of
    frames up to the user's code. 2: the user calls the function that calls `call_site`.
    """
    return site_of(sys._getframe(depth), positional)


def site_of(frame: FrameType, positional: tuple[str, ...]) -> CallSite:
    """Return the call that a frame is executing; `positional` are its parameters that may be given by position."""
    code = frame.f_code
    return CallSite(code.co_filename, frame.f_lineno, positional, code, frame.f_lasti // 2)


def attribute_place(frame: FrameType, name: str) -> Place:
    """Return the place of an attribute's name in `a.b`, `a.b = c` or `del a.b`, which the frame is executing.

    If the frame executes something else, such as `setattr(a, "b", c)`, the place of the whole expression is returned.
    """
    code = frame.f_code
    line, end_line, column, end = _positions(code)[frame.f_lasti // 2]
    if line is None or end_line is None or column is None or end is None:
        return Place(code.co_filename, frame.f_lineno)
    if opname[code.co_code[frame.f_lasti]].endswith(("_ATTR", "_METHOD")):
        line, column = end_line, end - len(name.encode())
    return place_of_bytes(code.co_filename, line, column, end_line, end)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Silence Python's warnings about source that is only read, such as of the invalid escape sequence in `"\\d"`.

    They would name no file, come once for each reading, and where warnings are errors the source could not be read.
    Python warns of the same line, with its file, when it executes the file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse(source: str | bytes) -> ast.Module:
    """Return the syntax tree of Python source, as `ast.parse` does, without its warnings.

    Raises SyntaxError, ValueError (a null byte, or bytes that cannot be decoded) or RecursionError.
    """
    with no_warnings():
        return ast.parse(source)


@lru_cache(maxsize=8)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    """Return start line, end line, start column and end column of each instruction of the code, None where unknown."""
    return list(code.co_positions())


@lru_cache(maxsize=64)
def _calls(file: str) -> dict[tuple[int | None, int | None], ast.Call]:
    """Return the calls in a file by line and column of their ends; empty if it cannot be parsed.

    No two calls share their end, but `a.b()` and `a.b().c()` share their beginning.
    """
    try:
        tree = parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a notebook cell with shell commands, or a binary file
        return {}
    return {(node.end_lineno, node.end_col_offset): node for node in ast.walk(tree) if isinstance(node, ast.Call)}


def _place(file: str, node: ast.AST) -> Place:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line, end = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column + 1)
    return place_of_bytes(file, line, column, end_line, end)


def place_of_bytes(file: str, line: int, column: int, end_line: int, end: int) -> Place:
    """Return the place of a range of source code. Of a range over several lines, the place has only the first line.

    Lines count from 1. `column` and `end` are offsets in bytes from 0, as Python gives them.
    """
    source = linecache.getline(file, line)
    if end_line != line:
        end = len(source.rstrip("\n").encode())
    start = len(source.encode()[:column].decode(errors="replace"))
    stop = len(source.encode()[:end].decode(errors="replace"))
    return Place(file, line, start + 1, max(stop, start + 1) + 1)
