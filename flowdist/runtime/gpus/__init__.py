"""The GPUs of a node: which there are, who uses them, which have failed."""
