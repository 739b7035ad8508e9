"""The channels between flowdist's processes and hosts: addresses, handshake, frames, and the messages in them.

Workers and hooks speak lines of JSON instead, which the standard library can write. Nothing here decides anything.
"""
