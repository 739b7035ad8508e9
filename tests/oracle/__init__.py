"""The oracle: does a script under flowdist observe, compute and leave behind the same as under torchrun?

`python -m tests.oracle` runs every script of `scripts` with two ranks under torchrun and under flowdist: a first start,
a restart after a kill, a second run, and a run after an edit. `scripts/probe.py` notes in each rank what the script can
observe. `judge.py` compares the notes entry by entry. What may differ is in `differences.py`, and in the documents.
"""
