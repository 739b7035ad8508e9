"""Text from elsewhere on a terminal: nothing in it is obeyed, and as much as possible of it can be read."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowdist.text.printable import one_line, printable, worker_line
from tests.text.nasty import nasty_text, obeyed


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("node1 lost\n\tthen back: naïve, 漢字, ❤️", "node1 lost\n\tthen back: naïve, 漢字, ❤️"),
        ("\x1b[2Jgone", "\\u001b[2Jgone"),
        ("\x9b2J\x7f\r", "\\u009b2J\\u007f\\u000d"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("a\u200bb\ufeff\U000e0041", "a\\u200bb\\ufeff\\udb40\\udc41"),
        ("\udc80", "\\udc80"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, seen: str) -> None:
    assert printable(text) == seen


def test_a_name_cannot_pretend_to_be_several_lines() -> None:
    assert one_line("node1\nflowdist 1.00s | the job has succeeded") == (
        "node1\\u000aflowdist 1.00s | the job has succeeded"
    )


@given(nasty_text | st.text())
def test_nothing_is_obeyed_and_cleaning_twice_changes_nothing(text: str) -> None:
    once = printable(text)
    assert obeyed(once, colours=False, unseen=True) == []
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in one_line(text) if char != "\t")
    assert printable(once) == once
    assert printable(f"{text}a") == once + "a"


@given(nasty_text)
def test_json_stays_the_same_json(text: str) -> None:
    encoded = json.dumps([text], ensure_ascii=False)
    assert json.loads(printable(encoded)) == [text]


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[38:2::1:2:3mred", "\x1b[38:2::1:2:3mred\x1b[0m"),  # the next line is another worker's
        ("\x1b[>4;2mkeys \x1b[?25lcursor \x1b[2J\x1b[10;1Hmoved", "keys cursor moved"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x9d0;t\x9cc\x1bPq\x1b\\d", "abcd"),
        ("\x1b]0;a title without an end", ""),
        ("\x1b]0;cut off by\x1b[32mgreen\x1b[0m", "\x1b[32mgreen\x1b[0m"),
        ("\x1bcreset \x1b(0lines \x1b7\x1b8", "reset lines "),
        ("\x9b31mC1 \x85\x00nul", "C1 nul"),
        ("split \x1b", "split "),
        ("split \x1b[12", "split "),
        ("\x1b\x00[2Jnot joined", "[2Jnot joined"),
        ("  5%|x   |\r 50%|xxx |\r100%|xxxx|", "100%|xxxx|"),
        ("100%|xxxx|\r", "100%|xxxx|"),
        ("\r 50%\x1b[A\r100%\x1b[K", "100%"),
        ("work |\b/\b-\b\\\b done", "work  done"),
        ("N\bNA\bAM\bM", "NAM"),
        ("a\x1b[31mb\b\b\b\bc", "c"),
        ("[trainer/0.1]  5%\r\x1b[32m 9%\x1b[0m", "[trainer/0.1] \x1b[32m 9%\x1b[0m"),
        ("[trainer/0] \b\b\b\b\b\b\b\b\b[ps/0] mine", "[trainer/0] [ps/0] mine"),
        ("[default0]:1\r2", "[default0]:2"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("no UTF-8: \udcff", "no UTF-8: \ufffd"),
        ("zero\u200dwidth \t漢字", "zero\u200dwidth \t漢字"),
    ],
)
def test_output_of_a_worker_keeps_its_colours_and_the_last_state_of_a_progress_bar(line: str, seen: str) -> None:
    assert worker_line(line) == seen


def test_without_colours_the_text_alone_is_left() -> None:
    assert worker_line("\x1b[31mValueError\x1b[0m: \x1b[1mbad\b\b\bshape", colours=False) == "ValueError: shape"


@given(nasty_text | st.text())
def test_no_output_of_a_worker_is_obeyed(line: str) -> None:
    assert obeyed(worker_line(line)) == []
    assert obeyed(worker_line(line, colours=False), colours=False) == []


@given(nasty_text, nasty_text)
def test_a_sequence_that_is_split_over_two_lines_is_not_obeyed_either(one: str, other: str) -> None:
    assert obeyed(worker_line(one) + worker_line(other)) == []


@pytest.mark.parametrize("unit", ["\x1b[", "\x1b]", "\x1b[1;", "a\b", "\b", "\r", "\x1b[31m\b", "0;", "\x1bP\x1b"])
def test_the_time_is_linear_in_the_length(unit: str) -> None:
    begun = time.process_time()
    worker_line("\x1b[" + unit * 100_000)
    assert time.process_time() - begun < 2
