"""Placement: which replica runs on which node, and which nodes are avoided or cordoned. It gives and takes seats.

The same events lead to the same seats, in a simulation and a real run. Growth never takes seats that the minimum of
another role needs (R2). A replica that loses its seat loses its suspended workers, too.
"""
