"""Modules come from a finder of the script's own, from a zip file, from a namespace package and from `sys.modules`."""

import importlib.abc
import importlib.machinery
import sys
import types

import probe


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "made_up" else None

    def exec_module(self, module):
        module.VALUE = "made up"


sys.meta_path.insert(0, Finder())
fake = sys.modules["faked"] = types.ModuleType("faked")
fake.VALUE = "faked"
probe.note("finder")
sys.path.append("parts.zip")
import faked
import made_up
import space.inner
import zipped

probe.first_step(values=[faked.VALUE, made_up.VALUE, zipped.VALUE, space.inner.VALUE])
