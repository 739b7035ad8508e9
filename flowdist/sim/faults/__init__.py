"""Faults in virtual time: a plan is carried out, drawn from a seed, and what never fired is explained."""
