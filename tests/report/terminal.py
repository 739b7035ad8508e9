"""Minimal terminal for tests: characters, newlines, cursor up, erasing, and the wrapping of wide lines."""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[([?;\d]*)([A-Za-z])")
BEGUN = re.compile(r"\x1b(\[[?;\d]*)?$")  # a sequence whose end has not been read yet


class Terminal:
    """Rows of text. `resize` wraps long lines again, as most terminals do, or cuts them, as some do."""

    def __init__(self, columns: int, lines: int, *, breaks_anew: bool = True) -> None:
        self.columns, self.lines, self._breaks_anew = columns, lines, breaks_anew
        self.rows: list[str] = [""]
        self._goes_on: list[bool] = [False]  # whether a row goes on in the next
        self.row = self.column = 0
        self.shows_cursor = True
        self._begun = ""

    @property
    def seen(self) -> list[str]:
        """Return the rows, without empty ones below the cursor and without trailing spaces."""
        rows = [row.rstrip() for row in self.rows]
        while len(rows) > self.row + 1 and not rows[-1]:
            rows.pop()
        return rows

    def write(self, text: str) -> int:
        length, text, at = len(text), self._begun + text, 0
        begun = BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        text = text[: len(text) - len(self._begun)]
        while at < len(text):
            if match := SEQUENCE.match(text, at):
                self._obey(match[2], match[1])
                at = match.end()
                continue
            self._put(text[at])
            at += 1
        return length

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down(goes_on=False)
        else:
            assert character.isprintable(), f"{character!r} has come through"
            if self.column == self.columns:
                self._down(goes_on=True)
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _down(self, *, goes_on: bool) -> None:
        self._goes_on[self.row] = goes_on
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append("")
            self._goes_on.append(False)

    def _obey(self, letter: str, argument: str) -> None:
        if letter == "A":
            top = max(0, len(self.rows) - self.lines)  # what has scrolled out cannot be reached
            self.row = max(top, self.row - int(argument))
        elif letter == "K":
            assert argument == "2", "the whole line"
            self.rows[self.row] = ""
            self._goes_on[self.row] = False
        elif (letter, argument) == ("l", "?25"):
            self.shows_cursor = False
        elif (letter, argument) == ("h", "?25"):
            self.shows_cursor = True
        else:
            assert letter == "m", f"an unknown sequence: {argument}{letter}"

    def resize(self, columns: int, lines: int) -> None:
        while self.row < len(self.rows) - 1 and not self.rows[-1]:  # erased, and the cursor is above
            del self.rows[-1], self._goes_on[-1]
        assert self.row == len(self.rows) - 1, "the cursor is at the end"
        whole: list[str] = []
        for row, joins in zip(self.rows, [False, *self._goes_on], strict=False):
            whole = [*whole[:-1], whole[-1] + row] if joins and whole else [*whole, row]
        self.columns, self.lines = columns, lines
        self.rows, self._goes_on = [], []
        for line in whole:
            parts = [line[at : at + columns] for at in range(0, len(line), columns)] or [""]
            if not self._breaks_anew:
                parts = parts[:1]
            self.rows += parts
            self._goes_on += [True] * (len(parts) - 1) + [False]
        self.row, self.column = len(self.rows) - 1, len(self.rows[-1])
