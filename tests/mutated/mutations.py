"""Mutations of valid inputs: each function takes a random stream and a valid input, and returns it with one mistake."""

from __future__ import annotations

import io
import json
import tokenize
from random import Random
from typing import Any

ODD_TEXTS = ("", " ", "x", "0", "-1", "1e999", "\u0000", "\u202e", "é" * 40, "a" * 5000, "../..", "${rank}", "[", "nan")
ODD_NUMBERS = ("0", "-1", "1", "2", "0.5", "1e308", str(1 << 31), str((1 << 63) - 1), str(1 << 64), "9" * 40, "100001")
ODD_LITERALS = (*ODD_NUMBERS, '""', '"x"', "None", "True", "[]", "{}", "()", "[None]", '"1s"', '"-1s"', '"99999999d"')
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**40),
    *("", "x", "a" * 5000, "\u0000", "é", [], {}, [[]], [None], {"a": None}, [1, 2, 3], {"type": "x"}),
)
_WORDS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)


def misspelt(draw: Random, word: str) -> str:
    """Return the word with one letter missing, doubled, exchanged or swapped with its neighbour."""
    if not word:
        return "x"
    at = draw.randrange(len(word))
    how = draw.randrange(4)
    if how == 0:
        return word[:at] + word[at + 1 :]
    if how == 1:
        return word[:at] + word[at] + word[at:]
    if how == 2:
        return word[:at] + draw.choice("abcxyz_-/@:=019.") + word[at + 1 :]
    return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


def of_python(draw: Random, text: str) -> str:
    """Return a Python file with one token missing, doubled, swapped, misspelt, or with another literal."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type in _WORDS]
    first = next(i for i, token in enumerate(tokens) if token.string in ("Topology", "t", "topology"))
    token = draw.choice(tokens[first:])
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: token.start[0] - 1])) + token.start[1]
    end = sum(map(len, lines[: token.end[0] - 1])) + token.end[1]
    word = text[start:end]
    how = draw.randrange(5)
    if token.type in (tokenize.NUMBER, tokenize.STRING) and how < 3:
        new = draw.choice(ODD_LITERALS)
    elif how == 0:
        new = ""
    elif how == 1:
        new = f"{word} {word}"
    elif how == 2:
        new = draw.choice(tokens).string
    else:
        new = misspelt(draw, word)
    return text[:start] + new + text[end:]


def of_words(draw: Random, text: str) -> str:
    """Return a text, such as that of a fault, with a part of it missing, doubled, misspelt or odd."""
    marks = [i for i, letter in enumerate(text) if letter in "@=:/+,.-"]
    how = draw.randrange(6)
    if how == 0 and marks:
        at = draw.choice(marks)
        return text[:at] + draw.choice("@=:/+,.-~% ") + text[at + 1 :]
    if how == 1 and marks:
        at = draw.choice(marks)
        return text[: at + 1] + draw.choice((*ODD_TEXTS, *ODD_NUMBERS))
    if how == 2 and marks:
        at = draw.choice(marks)
        return draw.choice((*ODD_TEXTS, *ODD_NUMBERS)) + text[at:]
    if how == 3 and marks:
        first, second = sorted((draw.choice(marks), draw.choice(marks)))
        return text[:first] + text[second:]
    if how == 4:
        return text + draw.choice("@=:/+,.-") + draw.choice((text, *ODD_NUMBERS))
    return misspelt(draw, text)


def of_lines(draw: Random, text: str) -> str:
    """Return a file with a line missing, doubled, swapped, of odd words, or with a part of it mutated as words."""
    lines = text.splitlines() or [""]
    at, how = draw.randrange(len(lines)), draw.randrange(6)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, lines[at])
    elif how == 2:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif how == 3 and "=" in lines[at]:
        lines[at] = lines[at].partition("=")[0] + f"= {draw.choice(ODD_LITERALS)}"
    else:
        lines[at] = of_words(draw, lines[at])
    return "\n".join(lines) + "\n"


def of_bytes(draw: Random, data: bytes) -> bytes:
    """Return bytes of which one is changed, missing or doubled, or that end early."""
    if not data:
        return b"\xff"
    at, how = draw.randrange(len(data)), draw.randrange(5)
    if how == 0:
        return data[:at] + data[at + 1 :]
    if how == 1:
        return data[:at] + data[at : at + 1] + data[at:]
    if how == 2:
        return data[:at]
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def of_json(draw: Random, value: Any) -> Any:
    """Return a JSON value in which one part is replaced, missing, doubled, misspelt, or exchanged with another."""
    places = list(_places(value))
    container, key = draw.choice(places)
    part, how = container[key], draw.randrange(8)
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, dict):
        container[misspelt(draw, key)] = container.pop(key)
    elif how == 2 and isinstance(container, list):
        container.insert(key, part)
    elif how == 3:
        other, at = draw.choice(places)
        container[key], other[at] = json.loads(json.dumps(other[at])), json.loads(json.dumps(part))
    elif how == 4 and isinstance(part, str):
        container[key] = misspelt(draw, part)
    elif how == 5 and isinstance(part, int | float):
        container[key] = draw.choice((part + 1, part - 1, -part, part * 1000))
    else:
        container[key] = draw.choice(ODD_VALUES)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every part of a JSON value, as its container and its key or index there."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        part = todo.pop()
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        found += [(part, key) for key in keys]
        todo += [part[key] for key in keys if isinstance(part[key], dict | list) and part[key]]
    return found
