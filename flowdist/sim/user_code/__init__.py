"""The work of user code: computed from a workload, or played from the classes that `simulate=` names.

Knows worlds, steps, checkpoints and their files. Knows nothing of why a world waits, starts or ends: `workers` does.
"""
