"""Which members, one node each, does an engine submit, replace, drain and cancel? A fourth pure machine."""
