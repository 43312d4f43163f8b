"""Calls that nobody waits for, in Valkey. `scripts.py` says how they lie there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import cast

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.peer_ports import BoxedCall, CallBox
from repertory.cluster.wire.valkey.link import Link
from repertory.cluster.wire.valkey.scripts import AGAIN, CALLS, DONE, FORGET, PUT, TAKE, UNTAKE, Script
from repertory.core.boxed_calls import ENDED_TEXT, call_of, call_text, plain_text
from repertory.core.ids import check_id
from repertory.core.peers import POISON_OWNERS
from repertory.errors import RepertoryError

_PAGE = 500


class ValkeyCallBox(CallBox):
    """Errors: those of the link; `Invalid` when the store was closed."""

    def __init__(self, link: Link, prefix: str, owner: str, ttl_s: float, check_open: Callable[[], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._owner = owner
        self._ttl_ms = round(ttl_s * 1000)
        self._check_open = check_open
        self._taking = anyio.Lock()
        self._known: set[str] = set()
        """The calls that were taken and are neither done nor given back. What else the server has in this owner's name
        was taken by a question whose answer was lost.
        """

    async def put(self, call: BoxedCall) -> bool:
        for value, what in ((call.session_id, "session id"), (call.agent_id, "agent id"), (call.token, "token")):
            check_id(value, what)
        text = call_text(call.call)
        return bool(await self._ask(PUT, _id(call), call.session_id, call.agent_id, call.token, text))

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[BoxedCall]:
        """One question."""
        self._check_open()
        if limit < 1 or not agents:
            return []
        async with self._taking:
            taken: list[BoxedCall] = []
            mine = [self._owner, self._ttl_ms, limit, POISON_OWNERS, ENDED_TEXT]
            with anyio.CancelScope(shield=True):
                of_whom = len(agents), *sorted(agents), len(passing), *passing
                taken = _calls(await self._ask(TAKE, *mine, *of_whom, *self._known))
            self._known |= {_id(call) for call in taken}
            try:
                await checkpoint()
            except BaseException:
                self._known -= {_id(call) for call in taken}
                with anyio.CancelScope(shield=True), suppress(RepertoryError):
                    await self._ask(UNTAKE, self._owner, *map(_id, taken))
                raise
        return taken

    async def done(self, calls: Sequence[BoxedCall]) -> None:
        """One question."""
        if calls:
            ids = [_id(call) for call in calls]
            try:
                await self._ask(DONE, self._owner, *ids)
            finally:  # If the answer is lost, what is still there is taken again, and its token does nothing twice.
                self._known -= set(ids)

    async def again(self, call: BoxedCall, after_s: float, error: str, *, park: bool = False) -> None:
        given = _id(call), round(after_s * 1000), plain_text(error), int(park)
        try:
            await self._ask(AGAIN, self._owner, *given)
        finally:
            self._known.discard(_id(call))

    async def calls(self, session_id: str | None = None) -> Sequence[BoxedCall]:
        """One question for each 500 calls."""
        found: list[BoxedCall] = []
        after = 0
        while True:
            lines = cast("list[list[bytes]]", await self._ask(CALLS, session_id or "", after, _PAGE))
            found += _calls(lines)
            if len(lines) < _PAGE:
                return found
            after = int(lines[-1][-1])

    async def forget(self, session_id: str) -> bool:
        """Forget the calls of a session. True if there were any."""
        return bool(await self._ask(FORGET, session_id))

    async def _ask(self, script: Script, *arguments: str | float) -> object:
        self._check_open()
        return await self._link.ask(script, self._prefix, *arguments)


def _id(call: BoxedCall) -> str:
    return f"{call.session_id}/{call.agent_id}/{call.token}"


def _calls(lines: object) -> list[BoxedCall]:
    return [_call([field.decode(errors="replace") for field in line]) for line in cast("list[list[bytes]]", lines)]


def _call(line: Sequence[str]) -> BoxedCall:
    session_id, agent_id, token, text, at_ms, tries, error, parked, _ = line
    return BoxedCall(
        session_id=session_id,
        agent_id=agent_id,
        token=token,
        call=call_of(text),
        created_at=_number(at_ms) / 1000,
        tries=_number(tries),
        error=error,
        parked=parked == "1",
    )


def _number(text: str) -> int:
    """0 for what nobody of ours has written."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
