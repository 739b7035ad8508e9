"""The timeline page of a run as it goes on: a small web server on loopback, for `flowdist ui` and `flowdist run --ui`.

`follow` reads the journal as it grows, `server` answers the browser. Both only read: nothing of the run depends on
them.
"""
