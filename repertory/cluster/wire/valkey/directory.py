"""Which runtimes share the sessions of a store, in Valkey, and hints about who owns a session.

The owner in the store is the truth. A hint that is wrong costs its reader one try, and is written anew by the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from repertory.backends.peer_ports import Directory, Peer
from repertory.cluster.wire.valkey.link import Link
from repertory.cluster.wire.valkey.scripts import BEAT, END, HINT, OWNER, PEERS, Script
from repertory.core.boxed_calls import ENDED_TEXT, plain_text
from repertory.core.ids import check_id
from repertory.core.peers import POISON_OWNERS
from repertory.errors import Invalid

HINT_S = 600.0
"""How long a hint is kept that its owner does not write again."""


class ValkeyDirectory(Directory):
    """Errors: those of the link; `Invalid` when the store was closed."""

    def __init__(self, link: Link, prefix: str, owner: str, ttl_s: float, check_open: Callable[[], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._owner = owner
        self._ttl_ms = round(ttl_s * 1000)
        self._check_open = check_open
        self._words = b""
        """What is said of this peer; nothing while it is not listed."""

    @property
    def name(self) -> str:
        return self._owner

    def socket(self) -> str | None:
        return None

    async def join(self, peer: Peer) -> None:
        """One question. The words are said again with each beat, so a server that has lost them has them again."""
        if peer.name != self._owner:
            raise Invalid("a peer has the name of its store's owner", got=peer.name, owner=self._owner)
        self._check_open()
        self._words = msgspec.json.encode(msgspec.structs.replace(peer, **_plain(peer)))
        await self.beat()

    async def beat(self) -> None:
        """Show that this owner is alive."""
        await self._ask(BEAT, self._owner, self._ttl_ms, self._words)

    async def peers(self) -> Sequence[Peer]:
        words = cast("list[bytes]", await self._ask(PEERS))
        return sorted((msgspec.json.decode(each, type=Peer) for each in words), key=lambda peer: peer.name)

    async def owner_of(self, session_id: str) -> str | None:
        check_id(session_id, "session id")
        return cast("bytes", await self._ask(OWNER, session_id)).decode() or None

    async def hint(self, sessions: Sequence[tuple[str, bool]]) -> None:
        """Say of these sessions whether this owner has them."""
        told = [word for session_id, owned in sessions for word in (session_id, int(owned))]
        await self._ask(HINT, self._owner, round(HINT_S * 1000), *told)

    async def leave(self) -> None:
        self._words = b""
        await self.beat()

    async def end(self) -> None:
        """This owner ends: what it has is free."""
        await self._link.ask(END, self._prefix, self._owner, POISON_OWNERS, ENDED_TEXT)

    async def _ask(self, script: Script, *arguments: str | bytes | float) -> object:
        self._check_open()
        return await self._link.ask(script, self._prefix, *arguments)


def _plain(peer: Peer) -> dict[str, str]:
    return {"address": plain_text(peer.address), "version": plain_text(peer.version), "zone": plain_text(peer.zone)}
