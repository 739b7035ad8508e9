"""The corpus of a proof: points that have shown something come first, those of another script do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.cli.run.prove_corpus import Corpus
from flowdist.errors import FlowdistError
from flowdist.prove.points import points
from tests.prove.histories import RANKS, resumed, watched

ALL = points(watched(), resumed(8), 6, RANKS[0], power=False)


def test_a_point_that_has_shown_something_comes_first_and_no_other_changes_its_place(tmp_path: Path) -> None:
    file, last = tmp_path / "new" / "corpus", ALL[-1]
    corpus = Corpus(file, "train.py")
    assert corpus.first(ALL) == ALL
    corpus.keep(ALL[0].name, [])
    corpus.keep(last.name, ["weights"])
    corpus.keep(last.name, ["weights"])
    assert len(file.read_text().splitlines()) == 1
    assert Corpus(file, "train.py").first(ALL) == [last, *ALL[:-1]]
    assert Corpus(file, "other.py").first(ALL) == ALL


@pytest.mark.parametrize("text", ["{", "[1]", '{"seed": 4, "faults": []}', '"text"'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / "corpus"
    file.write_text(text)
    with pytest.raises(FlowdistError, match="not a file of points"):
        Corpus(file, "train.py")
    assert file.read_text() == text
