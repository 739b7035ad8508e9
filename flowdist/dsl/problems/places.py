"""Places in the user's file: the argument of the call that has a problem.

The position of the call comes from the bytecode of its frame (`co_positions`, Python 3.11). The position of an argument
comes from the syntax tree of the file. Without the file, as in a notebook that was closed, only the line is known.
"""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple


class Place(NamedTuple):
    """Part of one line of a file. Lines and columns count from 1; `end_column` is the one after the last character."""

    file: str
    line: int
    column: int = 1
    end_column: int = 1


COMMAND_LINE = "<command line>"
CLI = Place(COMMAND_LINE, 1)


class CallSite:
    """One call in the user's file. The places of its arguments are computed only when a problem needs them."""

    def __init__(
        self, file: str, line: int, positional: tuple[str, ...], code: CodeType | None = None, instruction: int = 0
    ) -> None:
        self.file, self.line = file, line
        self._positional, self._code, self._instruction = positional, code, instruction

    def place(self, argument: str = "") -> Place:
        """Return the place of an argument, or of the call if the argument was not given."""
        call = self._call()
        if call is None:
            return Place(self.file, self.line)
        keyword = self._keyword(argument)
        node: ast.AST = keyword.value if keyword is not None else call.func
        if argument in self._positional and (index := self._positional.index(argument)) < len(call.args):
            node = call.args[index]
        return _place(self.file, node)

    def element(self, argument: str, index: int) -> Place:
        """Return the place of one element of a list argument."""
        value = getattr(self._keyword(argument), "value", None)
        if isinstance(value, ast.List | ast.Tuple) and index < len(value.elts):
            return _place(self.file, value.elts[index])
        return self.place(argument)

    def keyword(self, argument: str) -> Place:
        """Return the place of an argument together with its name: `cpus=3`."""
        keyword = self._keyword(argument)
        return _place(self.file, keyword) if keyword is not None else self.place(argument)

    def entry(self, argument: str, key: str) -> Place:
        """Return the place of the value of one key of a dict argument."""
        given = getattr(self._keyword(argument), "value", None)
        for name, value in zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ():
            if isinstance(name, ast.Constant) and name.value == key:
                return _place(self.file, value)
        return self.place(argument)

    def _keyword(self, argument: str) -> ast.keyword | None:
        call = self._call()
        return next((each for each in call.keywords if each.arg == argument), None) if call is not None else None

    def _call(self) -> ast.Call | None:
        if self._code is None:
            return None
        _, line, _, column = _positions(self._code)[self._instruction]
        return _calls(self.file).get((line, column))


def call_site(positional: tuple[str, ...], depth: int = 2) -> CallSite:
    """Return the call that is `depth` frames up; with 2, the call of the function that calls this one.

    Args:
        positional: Names of the parameters that may be given by position, in order.
    """
    frame: FrameType = sys._getframe(depth)
    code = frame.f_code
    return CallSite(code.co_filename, frame.f_lineno, positional, code, frame.f_lasti // 2)


@lru_cache(maxsize=8)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    """Return line, end line, column and end column of each instruction."""
    return list(code.co_positions())


@lru_cache(maxsize=64)
def _calls(file: str) -> dict[tuple[int | None, int | None], ast.Call]:
    """Return every call of the file by its end, which no two calls share: `a.b()` and `a.b().c()` begin together."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a notebook cell with commands of the shell, or a file without text
        return {}
    return {(node.end_lineno, node.end_col_offset): node for node in ast.walk(tree) if isinstance(node, ast.Call)}


def _place(file: str, node: ast.AST) -> Place:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line, end = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column + 1)
    return place_of_bytes(file, line, column, end_line, end)


def place_of_bytes(file: str, line: int, column: int, end_line: int, end: int) -> Place:
    """Return the place of a range that Python gives in bytes from 0; of several lines, only the first is marked."""
    source = linecache.getline(file, line)
    if end_line != line:
        end = len(source.rstrip("\n").encode())
    start = len(source.encode()[:column].decode(errors="replace"))
    stop = len(source.encode()[:end].decode(errors="replace"))
    return Place(file, line, start + 1, max(stop, start + 1) + 1)
