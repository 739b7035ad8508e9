MINE = True
__version__ = "third"
