"""Text that came from another host, a worker or a file, in a form that cannot command the reader's terminal.

Control characters move the cursor, set the title, hide text or type a command; some of Unicode reorder or hide it.
Names and errors show each of them as JSON does (`printable`); output of workers keeps colours and a bar's last state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

# Control characters but for tab and newline; Unicode's Default_Ignorable_Code_Point (without the variation selectors,
# which emoji need) and interlinear annotations; line and paragraph separators; lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)
_COLOUR = r"\x1b\[[0-9;:]{0,99}m"
# All that a terminal obeys (ECMA-48), in the order in which it has to be tried. A sequence may be cut off by the end of
# the line. The first group is what stays.
_OBEYED = re.compile(
    rf"({_COLOUR})"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"  # titles, links, queries
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # cursor, erasing, modes of the keyboard and the mouse
    r"|\x1b[ -/]*[0-~]?"  # reset, character sets, saved cursors
    "|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
_SPECIAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNDECODED = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8, as Python decodes them with surrogateescape
_NAME = re.compile(r"\[[\w./-]+\](?: |:)")  # of the worker, before its line
_RESET = "\x1b[0m"


def printable(text: str) -> str:
    """Return the text with each character that is not seen, or changes what is seen, in the form `\\u001b`.

    Tabs and newlines stay. A character beyond U+FFFF becomes a surrogate pair, as in JSON.
    """
    return _HIDDEN.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return the text as `printable`, with its newlines as `\\u000a`, so that it cannot pretend to be several lines."""
    return printable(text).replace("\n", "\\u000a")


def joined(lines: Iterable[str]) -> str:
    """Return lines of a report as one text, each as `one_line` returns it and with a newline at its end."""
    return "".join(f"{one_line(line)}\n" for line in lines)


def printable_values(content: Any, mask: Callable[[str], str] = str) -> Any:
    """Return the content of a JSON document with `one_line` of all texts in it, and the values of secrets masked."""
    if isinstance(content, str):
        return one_line(mask(content))
    if isinstance(content, dict):
        return {key: printable_values(value, mask) for key, value in content.items()}
    return [printable_values(value, mask) for value in content] if isinstance(content, (list, tuple)) else content


def worker_line(line: str, *, colours: bool = True) -> str:
    """Return a line of a worker's output as a terminal may show it; its name, `[trainer/0] `, stays.

    Colours stay, if wanted, and end with the line. Of text that a carriage return or backspaces have overwritten, as
    progress bars do, the last state stays. Other control sequences, and characters that reorder the text, are removed.
    Of a sequence that is split over two lines, the introducer is removed, so that the rest is text.
    """
    if _SPECIAL.search(line) is None:
        return line
    line = _UNDECODED.sub("\ufffd", line)
    name = match[0] if (match := _NAME.match(line)) is not None else ""
    rest = _OBEYED.sub((lambda found: found[1] or "") if colours else "", line[len(name) :])
    rest = rest.rstrip("\r").rpartition("\r")[2]
    if "\b" in rest:
        rest = _without_backspaces(rest)
    return name + rest + (_RESET if "\x1b" in rest and not rest.endswith(_RESET) else "")


def without_sequences(line: str) -> str:
    """Return a line of output without colours and other control sequences, to search in it; overwritten text stays."""
    return line if _SPECIAL.search(line) is None else _OBEYED.sub("", line)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _without_backspaces(text: str) -> str:
    """Return the text as it is after each backspace has erased the character before it, with colours between them."""
    kept: list[str] = []
    for token in re.findall(rf"{_COLOUR}|[^\x1b]", text):
        if token != "\b":
            kept.append(token)
            continue
        while kept and kept.pop().startswith("\x1b"):
            pass
    return "".join(kept)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a text table with at least one row: columns two spaces apart, indented by two spaces."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
