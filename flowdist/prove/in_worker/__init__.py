"""The part of `flowdist prove` that runs in the workers: they wait at the gate, and tell what they do."""
