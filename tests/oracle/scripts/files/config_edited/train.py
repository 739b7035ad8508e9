"""A config is read before RANK; it is edited before a later run."""

import json

import probe

with open("config.json") as file:
    CONFIG = json.load(file)
probe.first_step(config=CONFIG)
