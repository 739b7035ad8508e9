"""A module keeps `__main__`, adds to it at import, and pickles a class of it."""

import pickle

import probe


class Point:
    def __init__(self, x):
        self.x = x


import keeper

probe.note("kept")
text = pickle.dumps(Point(3))
probe.first_step(
    added=ADDED,  # noqa: F821
    same=keeper.MAIN is __import__("__main__"),
    x=pickle.loads(text).x,
    text=text.hex(),
    late=keeper.late(),
)
