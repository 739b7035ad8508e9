"""The controller process: it drives the pure controller and serves agents, operators and metrics."""
