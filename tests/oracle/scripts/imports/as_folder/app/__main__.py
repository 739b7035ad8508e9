import sys

sys.path.append(".")
import beside
import probe

probe.note("first line", file=__file__, name=__name__, package=__package__, spec=repr(__spec__.name))
probe.first_step(argv=sys.argv, first=sys.path[0], beside=beside.VALUE)
