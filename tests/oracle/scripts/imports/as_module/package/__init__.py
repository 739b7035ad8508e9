from . import inner

NAME = __name__
