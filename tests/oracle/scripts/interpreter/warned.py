"""Warnings are shown once: before RANK is read, and again after; filters are set."""

import os
import warnings

import probe

warnings.warn("at import", stacklevel=1)
warnings.simplefilter("once", UserWarning)


def twice():
    warnings.warn("in a function", UserWarning, stacklevel=1)


twice()
probe.note("warned")
rank = os.environ["RANK"]
twice()
warnings.filterwarnings("error", message="bad")
try:
    warnings.warn("bad", stacklevel=1)
    raised = False
except UserWarning:
    raised = True
probe.first_step(raised=raised, rank=rank, registry=sorted(str(key) for key in __warningregistry__))  # noqa: F821
