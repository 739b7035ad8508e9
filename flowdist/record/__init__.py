"""Records of jobs: the lines of a journal or trace, and the state and time accounts that follow. Nothing is decided."""
