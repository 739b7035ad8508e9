"""The channels between flowdist's processes and hosts: frames, handshakes, addresses."""
