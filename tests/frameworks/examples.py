"""The scripts of examples/frameworks as tests run them: unchanged, with a few lines before their own."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples/frameworks"
FUTURE = "from __future__ import annotations\n"
# Generation 1 waits in step 13, until a fault has come: outside of its group, or in a collective that the fault breaks.
WAIT = """
import time
from itertools import count
from torch.optim.optimizer import register_optimizer_step_post_hook
from flowdist import worker
def wait(*_, steps=count(1)):
    while next(steps) > 12 and worker.info().generation == 1:
        time.sleep(0.01)
register_optimizer_step_post_hook(wait)
"""
WAIT_TOGETHER = WAIT.replace("time.sleep(0.01)", "torch.distributed.barrier()").replace("import time", "import torch")


def with_lines(folder: Path, example: str, lines: str) -> Path:
    """Write the example into the folder, with lines before its own."""
    head, future, rest = (EXAMPLES / f"{example}.py").read_text().partition(FUTURE)
    path = folder / f"{example}.py"
    path.write_text(head + future + lines + rest)
    return path
