"""Variables from a JSON file, then torch and what it reads when it is imported."""

import json
import os

import probe

with open("config.json") as file:
    os.environ.update(json.load(file))
probe.note("set")
import torch
import torch.hub

probe.first_step(
    hub=torch.hub.get_dir(),
    logs=os.environ["TORCH_LOGS"],
    threads=torch.get_num_threads(),
    cuda=torch.cuda.device_count(),
)
