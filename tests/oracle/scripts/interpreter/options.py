"""Variables that set the interpreter up: -W, -X, hash seed, no bytecode, by the environment."""

import sys
import warnings

import probe

probe.note("first line")
print(f"grün {sys.flags.utf8_mode} {sys.flags.dev_mode}")
probe.first_step(
    flags=list(sys.flags),
    options=sorted(sys._xoptions),
    warned=sys.warnoptions,
    filters=len(warnings.filters),
    order=list({"a", "b", "c"}),
)
