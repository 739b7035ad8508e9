import sys

ARGUMENTS = list(sys.argv)
PATH = sys.path[0]
