"""What a journal or a trace says of a job: its lines, its state, where the time went, which rules it keeps.

Nothing here decides anything: `flowdist.control` does, and a record is what it was told and what it ordered.
"""
