import random

DRAWN = random.randint(0, 99)
