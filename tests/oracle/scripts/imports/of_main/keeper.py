import sys

MAIN = sys.modules["__main__"]
MAIN.ADDED = "by a module"


def late():
    import __main__

    return __main__.Point(4).x
