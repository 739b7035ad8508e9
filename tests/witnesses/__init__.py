"""Three witnesses of one job: real processes, the simulator, and the replay of the journal. See `__main__`."""
