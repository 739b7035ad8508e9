"""TLS between hosts: the controller makes itself a certificate, which the proof of the handshake vouches for.

There is no authority that signs, and no file to distribute. Each controller process has a new key, which never leaves
its memory. A peer accepts the certificate of the handshake's first answer and no other (see `handshake`).
"""

from __future__ import annotations

import logging
import os
import ssl
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio

EXTRA = "flowdist[tls]"  # what a controller needs to encrypt; hosts that connect to it need Python alone


class Identity(NamedTuple):
    """The certificate of a controller, as DER, and the context in which the controller accepts TLS connections."""

    certificate: bytes
    context: ssl.SSLContext


def can_encrypt() -> bool:
    """Return whether a controller on this host can make a certificate: the package `cryptography` is installed."""
    return find_spec("cryptography") is not None


def new_identity() -> Identity:
    """Return a new key with its certificate. The dates of the certificate do not matter: clocks of hosts may differ."""
    from cryptography import x509  # takes 0.1 s, and only a controller with a token needs it
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "flowdist")])
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    unsigned = unsigned.not_valid_before(datetime(2000, 1, 1)).not_valid_after(datetime(9999, 12, 31))
    unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = unsigned.sign(key, SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no connection resumes an earlier one
    _load(context, secret + certificate.public_bytes(Encoding.PEM))
    return Identity(certificate.public_bytes(Encoding.DER), context)


def client_context(certificate: bytes) -> ssl.SSLContext:
    """Return the context for a connection to the peer with this certificate (DER) alone; ssl.SSLError if it is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it is this very certificate, whatever the address
    context.load_verify_locations(cadata=certificate)
    return context


async def encrypt(writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
    """Encrypt a connection from here on.

    OSError if the peer has another key than its certificate says, has sent something else, or has gone.
    """
    logging.getLogger("asyncio").addFilter(_is_news)
    await writer.start_tls(context)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log line of asyncio is more than its remark on a peer that goes while TLS begins."""
    return "eof_received() has no effect" not in str(record.msg)


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key and its certificate, which `ssl` reads from files only, from a file in memory."""
    with os.fdopen(os.memfd_create("flowdist-tls"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
