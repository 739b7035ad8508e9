"""A config is read before RANK; it is rewritten between the attempts, with the same length and time."""

import json
import os

import probe

with open("config.json") as file:
    CONFIG = json.load(file)
probe.note("read", config=CONFIG)


def rewrite():
    before = os.stat("config.json")
    with open("config.json", "r+") as file:
        file.write('{"rate": 2}\n')
    os.utime("config.json", ns=(before.st_atime_ns, before.st_mtime_ns))


probe.first_step(config=CONFIG, last_act=rewrite)
