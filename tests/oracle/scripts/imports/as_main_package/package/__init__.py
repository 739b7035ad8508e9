import random

random.seed(9)
FIRST = random.random()
