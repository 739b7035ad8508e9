"""Version of flowdist, in a module without imports, so that any other module can import it."""

__version__ = "0.1.0"
