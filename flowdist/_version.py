"""Version of flowdist, in a module without imports, so that any other module and the build can read it."""

__version__ = "0.2.0"
