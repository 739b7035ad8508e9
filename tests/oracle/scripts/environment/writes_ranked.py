"""The script sets, keeps and removes variables of a rank before it reads one."""

import os

import probe

os.environ["LOCAL_RANK"] = "7"
os.environ.setdefault("MASTER_PORT", "1")
os.environ["WORLD_SIZE"] = "1"
del os.environ["GROUP_RANK"]
probe.note("written")
import json

probe.first_step(
    local=os.environ["LOCAL_RANK"],
    world=os.environ["WORLD_SIZE"],
    port=os.environ["MASTER_PORT"] != "1",
    length=len(json.dumps([])),
)
