"""The same run on real processes, whatever dies: `python -m tests.samerun --runs 100`."""
