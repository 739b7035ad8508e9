import probe

from . import NAME, inner
from .inner import PATH

probe.note("imported", name=__name__, package=__package__, spec=__spec__.name, file=__file__)
if __name__ == "__main__":
    probe.first_step(arguments=inner.ARGUMENTS, path=PATH, outer=NAME)
