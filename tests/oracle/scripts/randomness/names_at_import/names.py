import os
import secrets
import uuid

NAME = str(uuid.uuid4())
OTHER = str(uuid.uuid1())
TOKEN = secrets.token_hex(8)
BYTES = os.urandom(8).hex()
RANDOM = os.getrandom(8).hex()
