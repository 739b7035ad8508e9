"""Values that cross the border of `control`: ids, events, effects, and the messages between controller and agents.

Events and effects are the lines of the journal: a file format, which later versions have to be able to read. The folder
must not import another folder of `control`.
"""
