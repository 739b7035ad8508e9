"""The vocabulary of the job: ids, events, effects, and the messages between controller and agents.

Structs without behaviour. Events and effects are the lines of the journal, so their names and fields are a file format.
Nothing here imports another folder of `control`.
"""
