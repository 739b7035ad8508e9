"""Nodes that come and leave, worlds that form, grow and shrink, and what the operator asks for."""
