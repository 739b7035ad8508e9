"""The channels between flowdist's processes and hosts: addresses, handshake, frames, and the messages in them.

Every channel that carries msgpack has the one format of `framing.py`. This folder decides nothing: it defines what is
sent and how that is read. Workers and hooks speak lines of JSON instead, which the standard library can write.
"""
