"""Entropy is read from /dev/urandom as a file."""

import probe

with open("/dev/urandom", "rb") as file:
    SALT = file.read(8).hex()
with open("/proc/sys/kernel/random/uuid") as file:
    NAME = file.read()
probe.note("read")
probe.first_step(salt=SALT, name=NAME)
