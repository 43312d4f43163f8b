"""The wire between runtimes of one cluster: HTTP/1.1, one request on a connection at a time, answers as lines of JSON.
Where peers have a secret, both sides prove that they know it first, and all that follows is in frames (`proof.py`).

    POST /_repertory/v1/PATH        one JSON object
    200 application/x-ndjson        one JSON object a line, each sent at once; {"alive":1} after a while without any
    any other status                one JSON object that says why

A handler that takes long to be entered sends `102 Processing` as its sign of life, since its status is not known yet.
Start with `HttpPeers`; `http_server.py` answers, `http_client.py` calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio

from repertory.backends.peer_ports import Handler, JsonLine
from repertory.cluster.wire.addresses import advertised_address, listening_at, peer_address
from repertory.cluster.wire.http_settings import SILENT_PERIODS, UNPROVED, PeerLimits, PeerTls
from repertory.cluster.wire.proof import PeerSecret
from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class HttpPeers:
    """A `PeerWire` over TCP or a Unix socket.

    `listen` is `host:port` (port 0: any free one), `[v6]:port`, or `unix:/path`; None: this side only calls.
    `advertise` is where others reach a TCP address, as `host` or `host:port`; without it, the host that is listened at,
    and on a wildcard the address of this machine's name. Both sides of every connection prove that they know `secret`,
    and which address is called: the one that `serve` has told. `tls` is used by both sides of every TCP connection. TCP
    needs one of the two; a Unix socket is its user's alone. `entropy` gives random bytes. A peer that has not been
    heard for 3 x `alive_s` (seconds) is lost, so all peers have the same.

    Errors: `Invalid`; `ImportError` naming the extra.
    """

    def __init__(
        self,
        listen: str | None,
        *,
        advertise: str | None = None,
        entropy: Callable[[int], bytes],
        secret: str | None = None,
        tls: PeerTls | None = None,
        alive_s: float = 2.0,
        limits: PeerLimits | None = None,
    ) -> None:
        try:
            from repertory.cluster.wire.http_client import PeerClient, PeerClientSettings  # They need an extra.
        except ImportError as error:
            raise ImportError(f"peers need h11 ({error}): pip install 'repertory[peers]'") from error
        self._listen = None if listen is None else peer_address(listen)
        self._advertise = None if advertise is None else advertised_address(advertise)
        if self._advertise is not None and (self._listen is None or self._listen.path):
            raise Invalid("advertise is for a TCP address that is listened at", listen=listen)
        if self._listen is not None and not self._listen.path and secret is None and tls is None:
            raise Invalid(f"others can reach this address: {UNPROVED}", listen=listen)
        if alive_s <= 0:
            raise Invalid("alive_s is a number of seconds above 0", alive_s=alive_s)
        self._alive_s = alive_s
        self._limits = limits or PeerLimits()
        self._secret = None if secret is None else PeerSecret(secret, entropy)
        self._server_tls, client_tls = (None, None) if tls is None else tls.contexts()
        self._client = PeerClient(
            PeerClientSettings(
                secret=self._secret,
                tls=client_tls,
                silence_s=SILENT_PERIODS * alive_s,
                limits=self._limits,
            )
        )

    def __repr__(self) -> str:
        return f"HttpPeers({None if self._listen is None else str(self._listen)!r})"

    async def serve(self, handle: Handler, listening: Callable[[str], Awaitable[None]]) -> None:
        """See `PeerWire`. Requests that come before `listening` has returned wait until then."""
        from repertory.cluster.wire.http_server import PeerServer, PeerServerSettings  # They need an extra.

        if self._listen is None:
            raise Invalid("these peers only call: give listen an address to be called at")
        tls = None if self._listen.path else self._server_tls
        async with listening_at(self._listen, self._advertise) as (listeners, advertised):
            server = PeerServer(
                PeerServerSettings(
                    handle=handle,
                    address=advertised,
                    secret=self._secret,
                    tls=tls,
                    alive_s=self._alive_s,
                    limits=self._limits,
                )
            )
            try:
                await listening(advertised)
            except BaseException:
                # The tasks that close them in the end have not begun.
                with anyio.CancelScope(shield=True):
                    for listener in listeners:
                        await listener.aclose()
                raise
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.look_after, tasks)
                for listener in listeners:
                    tasks.start_soon(server.accept, listener, tasks)

    def call(self, address: str, path: str, body: JsonLine) -> AbstractAsyncContextManager[AsyncIterator[JsonLine]]:
        """See `PeerWire`. Besides: `Invalid` for what is no address or no JSON, and `TooLarge`; nothing was sent then.
        More calls of one address than `calls_max` wait for each other, without a limit of time.
        """
        return self._client.call(address, path, body)

    async def aclose(self) -> None:
        """See `PeerWire`. Calls that are under way go on; their connections are closed behind them."""
        await self._client.aclose()


__all__ = ["HttpPeers", "PeerLimits", "PeerTls"]
