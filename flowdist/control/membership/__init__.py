"""Membership: nodes that join and leave, worlds that form, grow and shrink, and requests of the operator.

A lost node keeps no seat. The folder must not judge failures: it records facts, which are judged in `incidents`.
"""
