"""Placement: which replica runs on which node, and which nodes are avoided or cordoned.

The same events always lead to the same seats, in a simulation and in a real run. The folder promises that growth never
takes seats that the minimum of another role needs (R2), and that no GPU is given out beyond its capacity. It must not
start or stop attempts: it gives and takes seats. A replica that loses its seat loses its suspended workers, too.
"""
