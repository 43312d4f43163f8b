"""Proof that both sides of a connection know the secret of their cluster. It comes before anything else crosses.

    caller   "repertory-peer/1", 32 random bytes
    called   32 random bytes
    caller   an empty frame
    called   an empty frame
    both     frames of at most 64 KiB: their length, HMAC-SHA256 of their number and bytes, their bytes

Each direction has a key of its own for each connection: HMAC-SHA256, under the secret, of the direction, both random
values, and the address that is called. So the secret never crosses. A proof or a frame that somebody repeats, reorders,
sends back, or passes on from another address is none. Frames are not encrypted. Whoever connects has to prove first, so
that a stranger who connects gets nothing to try guesses on. `docs/design/services.md` says why.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute

from repertory.errors import Invalid

MAGIC: Final = b"repertory-peer/1"
NONCE_BYTES: Final = 32
FRAME_MAX_BYTES: Final = 64 * 1024
_LENGTH_BYTES: Final = 4
_TAG_BYTES: Final = 32
_HEAD_BYTES: Final = _LENGTH_BYTES + _TAG_BYTES
_CALLER, _CALLED = b"caller", b"called"
_SECRET_CHARACTERS_MIN: Final = 16
"""The shortest secret: the callee of a peer can try guesses on its proof, and would find a shorter one."""
_STRETCHES: Final = 4096
"""Rounds of PBKDF2, as in RFC 5802: a guess costs as much more."""


def check_secret(secret: str) -> None:
    """Errors: `Invalid` for a secret that is short, or has the end of a line in it. It does not show the secret."""
    if len(secret) < _SECRET_CHARACTERS_MIN or not secret.isprintable():
        raise Invalid(f"secret has at least {_SECRET_CHARACTERS_MIN} characters, all of them printable")


class PeerSecret:
    """The secret of all peers of a cluster, with a source of random bytes. Nothing prints it. Errors: `Invalid`."""

    def __init__(self, secret: str, entropy: Callable[[int], bytes]) -> None:
        check_secret(secret)
        self._key = hashlib.pbkdf2_hmac("sha256", secret.encode(), MAGIC, _STRETCHES)
        self.entropy = entropy

    def key(self, direction: bytes, nonces: bytes, address: str) -> bytes:
        """The key of whoever sends in this direction over this connection."""
        return hmac.digest(self._key, direction + nonces + address.encode(), "sha256")


async def proved_to(stream: ByteStream, secret: PeerSecret, address: str) -> ProvedStream:
    """The stream of a caller who means this address, once both sides have proved that they know the secret.

    Errors: those of streams, also when the other side does not know it.
    """
    ours = secret.entropy(NONCE_BYTES)
    await stream.send(MAGIC + ours)
    nonces = ours + await _exactly(stream, NONCE_BYTES)
    proved = ProvedStream(stream, secret.key(_CALLER, nonces, address), secret.key(_CALLED, nonces, address))
    await proved.send_proof()
    await proved.receive_proof()
    return proved


async def proved_by(stream: ByteStream, secret: PeerSecret, address: str) -> ProvedStream:
    """The stream of a peer that is called at this address, likewise."""
    greeting = await _exactly(stream, len(MAGIC) + NONCE_BYTES)
    if not greeting.startswith(MAGIC):
        raise anyio.BrokenResourceError("the caller is no peer")
    ours = secret.entropy(NONCE_BYTES)
    nonces = greeting.removeprefix(MAGIC) + ours
    await stream.send(ours)
    proved = ProvedStream(stream, secret.key(_CALLED, nonces, address), secret.key(_CALLER, nonces, address))
    await proved.receive_proof()
    await proved.send_proof()
    return proved


class ProvedStream(ByteStream):
    """A stream in frames. `receive` may be cancelled at any moment. What does not come from the one who proved that it
    knows the secret breaks it.
    """

    def __init__(self, stream: ByteStream, sends: bytes, receives: bytes) -> None:
        self._stream = stream
        self._sends, self._receives = _Tags(sends), _Tags(receives)
        self._buffer = bytearray()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {SocketAttribute.raw_socket: lambda: self._stream.extra(SocketAttribute.raw_socket)}

    async def send_proof(self) -> None:
        """Send the first frame, which is empty."""
        await self._stream.send(self._framed(b""))

    async def receive_proof(self) -> None:
        """Receive the first frame of the other side. Errors: those of streams."""
        if await self.receive():
            raise anyio.BrokenResourceError("the proof is an empty frame")

    async def send(self, item: bytes) -> None:
        pieces = (item[start : start + FRAME_MAX_BYTES] for start in range(0, len(item), FRAME_MAX_BYTES))
        await self._stream.send(b"".join(map(self._framed, pieces)))

    async def receive(self, max_bytes: int = FRAME_MAX_BYTES) -> bytes:
        """Every frame that has come, at least one, however few bytes are asked for."""
        while (size := self._whole()) is None:
            self._buffer += await self._stream.receive()
        pieces = bytearray()
        while size is not None:
            end = _HEAD_BYTES + size
            piece = self._buffer[_HEAD_BYTES:end]
            if not hmac.compare_digest(self._buffer[_LENGTH_BYTES:_HEAD_BYTES], self._receives.of_next(piece)):
                raise anyio.BrokenResourceError("a frame is of somebody who does not know the secret")
            del self._buffer[:end]
            pieces += piece
            size = self._whole()
        return bytes(pieces)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _framed(self, piece: bytes) -> bytes:
        return len(piece).to_bytes(_LENGTH_BYTES, "big") + self._sends.of_next(piece) + piece

    def _whole(self) -> int | None:
        """The size of the next frame in bytes; None until all of it is there. Errors: `anyio.BrokenResourceError`."""
        if len(self._buffer) < _HEAD_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        # Asked before the tag can be: somebody who knows no secret may send 4 GiB as a length.
        if size > FRAME_MAX_BYTES:
            raise anyio.BrokenResourceError("a frame is too large")
        return size if len(self._buffer) >= _HEAD_BYTES + size else None


class _Tags:
    """The tags of one direction's frames, in their order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._number = 0

    def of_next(self, piece: bytes | bytearray) -> bytes:
        # The copy spares each frame the hashing of the key.
        tag = self._keyed.copy()
        tag.update(self._number.to_bytes(8, "big") + piece)
        self._number += 1
        return tag.digest()


async def _exactly(stream: ByteStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        # No byte more than asked for: what follows belongs to the frames.
        data += await stream.receive(count - len(data))
    return data
