"""The runtime, which runs a job on real processes, on Linux. Its decisions are those of `control`."""
