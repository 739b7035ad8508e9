"""Code is run by runpy, exec and importlib, as `%run` does."""

import importlib
import importlib.util
import runpy
import sys

import probe

ran = runpy.run_path("part.py", run_name="__main__", init_globals={"GIVEN": 3})
module = runpy.run_module("part_module", run_name="part_as")
probe.note("run")
space = {"__name__": "__main__", "__file__": "part.py", "GIVEN": 4}
exec(compile(open("part.py").read(), "part.py", "exec"), space)
spec = importlib.util.spec_from_file_location("chosen", "part_module.py")
chosen = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chosen)
again = importlib.reload(importlib.import_module("part_module"))
probe.first_step(
    ran=ran["VALUE"],
    executed=space["VALUE"],
    names=[module["NAME"], chosen.NAME, again.NAME],
    main=sys.modules["__main__"].__file__,
)
