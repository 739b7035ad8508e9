"""The version of flowdist, in a module without imports: `flowdist` itself imports what needs the version."""

__version__ = "0.1.0"
