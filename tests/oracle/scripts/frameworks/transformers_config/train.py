"""Variables from a JSON config, then `from transformers import Trainer`: offline and another hub folder."""

import json
import os

with open("config.json") as file:
    for name, text in json.load(file).items():
        os.environ[name] = text
import transformers
from huggingface_hub import constants
from transformers import Trainer
from transformers.utils import is_offline_mode

import probe

probe.first_step(
    offline=is_offline_mode(), hub=constants.HF_HUB_CACHE, trainer=Trainer.__module__, version=transformers.__version__
)
