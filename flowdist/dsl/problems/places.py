"""Where in the user's file something was written: the very argument of the very call.

The call's position comes from the bytecode of the frame (`co_positions`, Python 3.11), the position of its arguments
from the syntax tree of the file. Where there is no file, as in a notebook that was closed, only the line is known.
"""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple


class Place(NamedTuple):
    """Lines and columns count from 1; `end_column` is the column after the last character."""

    file: str
    line: int
    column: int = 1
    end_column: int = 1


COMMAND_LINE = "<command line>"
CLI = Place(COMMAND_LINE, 1)


class CallSite:
    """One call in the user's file. Where its arguments stand is looked up only when a problem needs it."""

    def __init__(
        self, file: str, line: int, positional: tuple[str, ...], code: CodeType | None = None, instruction: int = 0
    ) -> None:
        self.file, self.line = file, line
        self._positional, self._code, self._instruction = positional, code, instruction

    def place(self, argument: str = "") -> Place:
        """The place of an argument, or of the call when it was not given."""
        call = self._call()
        if call is None:
            return Place(self.file, self.line)
        node: ast.AST = call.func
        for keyword in call.keywords:
            if keyword.arg == argument:
                node = keyword.value
        if argument in self._positional and (index := self._positional.index(argument)) < len(call.args):
            node = call.args[index]
        return _place(self.file, node)

    def element(self, argument: str, index: int) -> Place:
        """The place of one element of a list argument."""
        call = self._call()
        for keyword in call.keywords if call is not None else ():
            value = keyword.value
            if keyword.arg == argument and isinstance(value, ast.List | ast.Tuple) and index < len(value.elts):
                return _place(self.file, value.elts[index])
        return self.place(argument)

    def keyword(self, argument: str) -> Place:
        """The place of an argument with its name: `cpus=3`."""
        call = self._call()
        found = [keyword for keyword in call.keywords if keyword.arg == argument] if call is not None else []
        return _place(self.file, found[0]) if found else self.place(argument)

    def entry(self, argument: str, key: str) -> Place:
        """The place of the value of one key of a dict argument."""
        call = self._call()
        for keyword in call.keywords if call is not None else ():
            if keyword.arg == argument and isinstance(keyword.value, ast.Dict):
                for name, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    if isinstance(name, ast.Constant) and name.value == key:
                        return _place(self.file, value)
        return self.place(argument)

    def _call(self) -> ast.Call | None:
        if self._code is None:
            return None
        _, line, _, column = _positions(self._code)[self._instruction]
        return _calls(self.file).get((line, column))


def call_site(positional: tuple[str, ...], depth: int = 2) -> CallSite:
    """The call that is `depth` frames up: where the user called the function that calls this one."""
    frame: FrameType = sys._getframe(depth)
    code = frame.f_code
    return CallSite(code.co_filename, frame.f_lineno, positional, code, frame.f_lasti // 2)


@lru_cache(maxsize=8)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    """Line, end line, column and end column of each instruction."""
    return list(code.co_positions())


@lru_cache(maxsize=64)
def _calls(file: str) -> dict[tuple[int | None, int | None], ast.Call]:
    """Every call of the file by where it ends: `a.b()` and `a.b().c()` begin together, but no two end together."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a cell of a notebook with commands in it, or no text at all
        return {}
    return {(node.end_lineno, node.end_col_offset): node for node in ast.walk(tree) if isinstance(node, ast.Call)}


def _place(file: str, node: ast.AST) -> Place:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line, end = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column + 1)
    return place_of_bytes(file, line, column, end_line, end)


def place_of_bytes(file: str, line: int, column: int, end_line: int, end: int) -> Place:
    """The place of what the compiler speaks of: its columns are bytes from 0. Of several lines it is the first."""
    source = linecache.getline(file, line)
    if end_line != line:
        end = len(source.rstrip("\n").encode())
    start = len(source.encode()[:column].decode(errors="replace"))
    stop = len(source.encode()[:end].decode(errors="replace"))
    return Place(file, line, start + 1, max(stop, start + 1) + 1)
