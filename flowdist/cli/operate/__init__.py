"""Verbs that give an order to the controller of a running job, and print what the controller decides."""
