"""The last words of a process: one line of its log that cannot command a terminal, read back as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.runtime.last_words import MARK, WORDS_MAX, in_words, last_words
from tests.choosing import examples
from tests.text.nasty import nasty_text, obeyed


def test_an_exception_is_one_line_that_a_terminal_does_not_obey() -> None:
    assert in_words(KeyError()) == "KeyError"
    assert in_words(ValueError("of two\n lines\u2028\x1b[2J")) == r"ValueError: of two lines \u001b[2J"
    assert len(in_words(ValueError("\x1b" * 1000))) == WORDS_MAX


@pytest.mark.parametrize("error", [BlockingIOError(11, "Try again"), RuntimeError("can't start new thread")], ids=repr)
def test_an_exception_that_a_limit_of_processes_may_have_caused_names_the_limit(error: Exception) -> None:
    assert in_words(error).endswith(" (a limit of processes or threads? see `ulimit -u`)")


@given(st.lists(nasty_text, min_size=1, max_size=3))
@settings(max_examples=examples(40, 300), deadline=None)
def test_the_last_exception_of_a_log_is_read_as_it_was_named(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    log = tmp_path_factory.getbasetemp() / "last_words.log"
    named = [in_words(ValueError(text)) for text in texts]
    log.write_text("".join(f"a traceback\n{MARK}{words}\n" for words in named))
    assert last_words(log) == named[-1]
    assert obeyed(named[-1], colours=False, unseen=True) == []
