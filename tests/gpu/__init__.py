"""Everything that needs a GPU, in one command of under ten minutes: `make gpu`, or `python -m tests.gpu`.

It needs no network, and one NVIDIA GPU is enough. Without a GPU it says what is missing, and exits with 4.
"""
