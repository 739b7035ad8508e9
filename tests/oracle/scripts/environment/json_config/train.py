"""Variables from a JSON file are set before the import of a module that reads them; the file is edited for a later run."""

import probe

probe.note("first line")
import json
import os

with open("config.json") as file:
    for name, text in json.load(file).items():
        os.environ[name] = text
probe.note("configured")
import reader

probe.first_step(offline=reader.OFFLINE, hub=reader.HUB, home=reader.HOME)
