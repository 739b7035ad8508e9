"""What must be true of a job after every event, and how much of it is checked when."""
