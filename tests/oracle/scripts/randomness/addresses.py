"""Addresses of objects serve as names; under a launcher they differ between processes."""

import probe


class Thing:
    pass


THING = Thing()
ADDRESS = id(THING)
probe.note("made")
probe.first_step(address=ADDRESS, same=ADDRESS == id(THING), text=repr(THING).startswith("<__main__.Thing object"))
