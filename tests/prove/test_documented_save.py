"""The save that docs/worker.md shows for copying: `flowdist prove` finds nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.testing import prove
from tests.docs.commands import blocks_of
from tools.pages import DOCS

pytestmark = [pytest.mark.real, pytest.mark.slow]

BEFORE = """import os
import torch
from flowdist import worker

"""
# Rank 0 saves for both: each step is the same on all ranks.
AFTER = """
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
begun = 0
if (saved := restore()) is not None:
    begun, weights, moments, random = saved
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    torch.set_rng_state(random)
for step in range(begun, 12):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 4 == 0 and worker.info().rank == 0:
        save((step + 1, model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), step + 1)
"""


def test_the_save_of_the_page_survives_each_kill_and_each_loss_of_power(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    blocks = blocks_of("worker.md", (DOCS / "worker.md").read_text())
    (block,) = (block.text for block in blocks if block.text.startswith("def save("))
    (tmp_path / "train.py").write_text(BEFORE + block + AFTER)
    proof = prove("train.py", folder=tmp_path, procs=1, power=True, budget="40s")
    assert [save["step"] for save in proof["saves"]] == [4, 8, 12] and len(proof["tried"]) > 15
