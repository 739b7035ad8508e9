from math import sqrt

LOSS = sqrt(1.0)
