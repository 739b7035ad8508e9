"""Some lengths of `python -m tests.lab.peers`, which plays 23."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.network import LabUnavailable
from tests.lab.peers import play

pytestmark = [pytest.mark.real, pytest.mark.lab, pytest.mark.slow]


LONG_S = 3.0  # a host that is cut off for so long has killed its workers; before, that depends on its last heartbeat


@pytest.mark.parametrize("seconds", [2.75, 3.0, 5.5])
def test_a_cut_of_one_host_is_charged_to_none_of_its_peers(tmp_path: Path, seconds: float) -> None:
    try:
        outcome = play(tmp_path, seconds)
    except LabUnavailable as error:
        pytest.skip(f"no lab: {error}")
    assert not outcome.charged and not outcome.cordoned, outcome
    if seconds >= LONG_S:
        assert any(incident.startswith("node_lost of h2") for incident in outcome.incidents), outcome
