"""The work of user code in a simulation: computed from a workload, or played from the classes that `simulate=` names.

This folder knows worlds, steps, checkpoints and their files. It does not know why a world waits, starts or ends: that
is up to `sim.workers`.
"""
