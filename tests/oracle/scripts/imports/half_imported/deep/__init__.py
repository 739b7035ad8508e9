BEFORE = 1
from .lower import VALUE

AFTER = 2
