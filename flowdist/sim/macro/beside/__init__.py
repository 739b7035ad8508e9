"""Roles beside the gang in macro mode: evaluators and services on nodes of their own, played replica by replica."""
