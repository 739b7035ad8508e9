"""Builtins are replaced before RANK is read: print, open, and the import itself."""

import builtins
import os

import probe

PLAIN_PRINT, PLAIN_OPEN, PLAIN_IMPORT = print, open, builtins.__import__
OPENED, IMPORTED = [], []


def own_print(*words, **options):
    PLAIN_PRINT("[own]", *words, **options)


def own_open(name, *rest, **options):
    OPENED.append(os.path.basename(str(name)))
    return PLAIN_OPEN(name, *rest, **options)


def own_import(name, *rest, **options):
    IMPORTED.append(name)
    return PLAIN_IMPORT(name, *rest, **options)


builtins.print, builtins.open, builtins.__import__ = own_print, own_open, own_import
import csv

probe.note("patched")
print("before")
rank = os.environ["RANK"]
opened, imported = list(OPENED), list(IMPORTED)
print("after", rank, flush=True)
with open(__file__):
    pass
probe.first_step(opened=opened, imported=imported, rank=rank, csv=csv.__name__)
