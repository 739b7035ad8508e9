"""Records of jobs: the lines of a journal or trace, the state and the time accounts that follow from them."""
