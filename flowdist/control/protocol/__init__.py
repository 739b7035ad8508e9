"""Vocabulary of the job: ids, events, effects, and the messages between controller and agents.

All are structs without decisions. Events and effects are the lines of the journal, so that their names and fields are a
file format, which has to stay readable for later versions. The folder must not import another folder of `control`.
"""
