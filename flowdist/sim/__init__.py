"""The simulator: a whole job in virtual time, with the controller and the agents of production.

The same seed gives the same bytes: no clock, no thread, no I/O, and every drawn number has a stream of its own.
`simulation.Simulation` joins the layers: engine, user_code, workers, faults, checks. `macro` computes weeks of a large
job without playing messages. `experiment` is what verbs stand on that play a job and compare what comes of it.
"""
