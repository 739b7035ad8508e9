"""Judge of records: the restart rules, checked on the events and effects of a job alone.

`facts` follows the attempts, nodes and generations of a record. `restart_rules` and `start_rules` check each line by
these facts. The judge never asks the controller, and shares no code with it.
"""
