"""wandb is imported and used offline before the first step, without a network."""

import os

os.environ["WANDB_MODE"] = "disabled"
os.environ["WANDB_SILENT"] = "true"
import wandb

import probe

probe.note("imported")
run = wandb.init(project="own", config={"rate": 0.1})
run.log({"loss": 1.0})
probe.first_step(rate=run.config["rate"], rank=os.environ["RANK"])
run.finish()
