"""The runtime: it runs a job on real processes, with the controller and agents of the simulator. Needs Linux."""
