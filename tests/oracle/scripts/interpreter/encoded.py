#!/usr/bin/env python
# -*- coding: latin-1 -*-
"""A script with an encoding line, `from __future__`, annotations and a script's own dunder names."""

from __future__ import annotations

import probe

__author__ = "someone"
__all__ = ["WORD"]
WORD: str = "grun"
probe.note(
    "first line",
    doc=__doc__,
    annotations=__annotations__,
    names=[__name__, __package__, repr(__loader__)[:30], repr(__spec__)],
)
probe.first_step(
    author=__author__, builtins=type(__builtins__).__name__, cached=globals().get("__cached__"), dict=sorted(globals())
)
