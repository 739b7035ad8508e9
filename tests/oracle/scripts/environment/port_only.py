"""MASTER_PORT alone is read at import, which all ranks share; it is kept."""

import os

import probe

PORT = os.environ["MASTER_PORT"]
ADDRESS = f"tcp://{os.getenv('MASTER_ADDR', '')}:{PORT}"
probe.note("kept")
probe.first_step(same=os.environ["MASTER_PORT"] == PORT, number=PORT.isdigit())
