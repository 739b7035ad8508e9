"""Price of an hour, as the user writes it: `--price 2.5`, `--price 2.5/gpu-hour` or `--price 20/node-hour`."""

from __future__ import annotations

import re
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.sim.experiment.experiment import Experiment

_PRICE = re.compile(r"(\d+(?:\.\d+)?)(?:/(gpu|node)-hour)?")
HELP = "write --price 2.5, --price 2.5/gpu-hour or --price 20/node-hour"


class Price(NamedTuple):
    """Amount for an hour of a GPU or of a node. `of` is empty if the user did not say of which."""

    amount: float
    of: str = ""

    def per_hour(self, job: Experiment) -> float:
        """Return the price of an hour of a GPU, or of a node if the job has none; FlowdistError: no GPUs to pay for."""
        if self.of == "gpu" and not job.gpus:
            message = f"--price {self.amount:g}/gpu-hour: the nodes of the job have no GPUs"
            raise FlowdistError(message, help=f"write --price {self.amount:g}/node-hour")
        if self.of == "node" and job.gpus:
            return self.amount * len(job.graph.cluster.nodes) / job.gpus
        return self.amount


def parse_price(text: str) -> Price:
    """Return the price that a text describes, or raise FlowdistError."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise FlowdistError(f"--price {text} cannot be read", help=HELP)
    return Price(float(match[1]), match[2] or "")
