"""Folder, words and links: the script is started by a path with a link and `..`."""

import os
import sys

import probe

probe.note("first line", first=sys.path[0], file=__file__)
import sub.beside

probe.first_step(beside=sub.beside.__file__, cwd=os.getcwd())
