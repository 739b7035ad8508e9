"""What must hold of a job after every event: all of it, or what an event may have broken.

Checks only read the state of the job. The simulator, the proofs and the tests call them; production does not.
"""
