"""A module that loads itself when it is asked for something is not asked before the script asks it."""

import importlib.util
import os
import sys

import probe

spec = importlib.util.find_spec("heavy")
spec.loader = importlib.util.LazyLoader(spec.loader)
heavy = sys.modules["heavy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(heavy)
rank = os.environ["RANK"]
names = object.__getattribute__(heavy, "__dict__")
probe.first_step(rank=rank, is_loaded="LOADED" in names)
probe.done(asked=heavy.LOADED)
