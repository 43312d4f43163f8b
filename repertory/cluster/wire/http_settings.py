"""The settings of the HTTP wire between runtimes, for both sides: its words, its limits, and its certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, cast

import msgspec.json

from repertory.backends.peer_ports import JsonLine
from repertory.core.queued_calls import CALL_BYTES_MAX
from repertory.errors import Invalid

PREFIX: Final = "/_repertory/v1/"
ALIVE: Final = b'{"alive":1}'
"""The line that says only that the peer is alive. Callers are not given it."""
SILENT_PERIODS: Final = 3
"""The silence after which a peer is lost, as a multiple of `alive_s`."""
UNPROVED: Final = "set secret, or tls, on all peers"
"""The advice where there is neither a secret nor TLS."""
_OBJECT: Final = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """Paths of PEM files; each is read once, when the wire is made. Both sides show a certificate that `ca` has signed,
    and nothing else is checked: no name and no address, since peers move. So give that CA to peers alone.

    Args:
        certificate: The path of the certificate, as PEM.
        ca: The path of the authority's certificate, as PEM.
    """

    certificate: str
    key: str
    """The path of the certificate's key, as PEM without a password."""
    ca: str

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The contexts of TLS for the side that is called, and for the side that calls.

        Raises:
            Invalid: For files that do not serve. Correct the argument.
        """
        try:
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
            client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
            for context in (server, client):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise Invalid(f"tls names PEM files of a certificate, its key and its CA: {error}") from error
        return server, client


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Bounds of one wire. Those of size are about one request, one line or one connection."""

    connections_max: int = 1024
    """Open connections of callers. At the bound, one that is kept but idle is closed for a new one; if all are in use,
    new ones wait.
    """
    calls_max: int = 64
    """Calls to one address at once; more wait."""
    body_max_bytes: int = CALL_BYTES_MAX
    """The most bytes of a request's body, and of one line of an answer."""
    head_max_bytes: int = 16 * 1024
    connect_s: float = 2.0
    """Seconds until a connection is made. A TLS handshake after that may be silent for as long as any answer."""
    proof_s: float = 5.0
    """Seconds in which a new connection proves that it is one of a peer, TLS included."""
    unproved_max: int = 128
    """Connections without that proof. At the bound, the oldest of them is closed for a new one."""
    request_s: float = 10.0
    """Seconds until a request has arrived whole, from its first byte on; and until the first one begins."""
    reuse_s: float = 30.0
    """Seconds that a caller keeps an idle connection open."""
    idle_s: float = 60.0
    """Seconds that the called side keeps an idle connection open; more than `reuse_s`, so that callers close first."""
    stalled_s: float = 300.0
    """Seconds in which a caller takes nothing of its answer, after which it has gone."""


def json_of(value: JsonLine) -> bytes:
    """One line of JSON, without its end. Errors: `Invalid` for what JSON cannot say."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"peers are told JSON objects: {error}") from error


def object_of(data: bytes | bytearray) -> JsonLine:
    """A JSON object. Errors: `ValueError`."""
    try:
        return cast("JsonLine", _OBJECT.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}") from error
