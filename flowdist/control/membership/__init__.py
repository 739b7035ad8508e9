"""Membership: nodes that join and leave, worlds that form, grow and shrink, and requests of the operator.

This folder records joins, losses, starts and ends of attempts as facts, and forms worlds whose gates are open and whose
minimum is seated (R1 to R4, R13, R14). It promises that a lost node keeps no seat. It must not judge failures: facts
are judged in `incidents`.
"""
