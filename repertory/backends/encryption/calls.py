"""Posted calls that are sealed: prompt and options, and why a call was not done. Readable stay session, agent, token,
times and tries. A call in plain text is refused like a row in plain text: anybody may have written it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from repertory.backends.encryption.row_cipher import RowCipher
from repertory.backends.peer_ports import CallQueue, QueuedCall
from repertory.backends.shields import Uncut
from repertory.core.journal.sealing import LOCKED
from repertory.core.messages import Json
from repertory.core.queued_calls import call_of, call_text
from repertory.core.turns.due_times import AGAIN_S
from repertory.errors import Corrupt, RepertoryError

_SEALED, _PLAIN = "sealed", "in plain text"
_PREFIX = "sealed:"


class SealedCallQueue(CallQueue):
    """A `CallQueue` whose calls are sealed with the keys of their sessions."""

    def __init__(self, box: CallQueue, cipher_of: Callable[[str], Awaitable[RowCipher]]) -> None:
        self._box = box
        self._cipher_of = cipher_of

    async def put(self, call: QueuedCall) -> bool:
        """Seal a call and put it as `CallQueue.put` does. Errors: also `KeyErased`, `KeyMissing`."""
        if is_sealed_call(call):  # It could not be opened, and is put again as it is.
            return await self._box.put(call)
        if set(call.call) == {_PLAIN}:  # Nor is this one sealed here: `take` is to refuse it again.
            return await self._box.put(replace(call, call=cast("Mapping[str, Json]", call.call[_PLAIN])))
        text = call_text(call.call)
        cipher = await self._cipher_of(call.session_id)
        return await self._box.put(replace(call, call={_SEALED: cipher.seal_text(_name(call), text)}))

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[QueuedCall]:
        """Take calls as `CallQueue.take` does, and open them. One that cannot be opened is parked, with the reason."""
        taken: list[QueuedCall] = []
        calls = await self._box.take(limit, agents, passing)
        with Uncut():  # They are this owner's by now.
            for call in calls:
                try:
                    taken.append(await self._opened(call))
                except (Corrupt, *LOCKED) as error:
                    await self._box.again(call, 0.0, str(error), park=True)
                except RepertoryError as error:
                    await self._box.again(call, AGAIN_S, str(error))
        return taken

    async def done(self, calls: Sequence[QueuedCall]) -> None:
        await self._box.done(calls)

    async def again(self, call: QueuedCall, after_s: float, error: str, *, park: bool = False) -> None:
        if error:
            cipher = await self._cipher_of(call.session_id)
            error = f"{_PREFIX}{cipher.seal_text(f'error {_name(call)}', error)}"
        await self._box.again(call, after_s, error, park=park)

    async def calls(self, session_id: str | None = None) -> Sequence[QueuedCall]:
        """List calls as `CallQueue.calls` does, opened. One that cannot be opened is given as it is stored."""
        found: list[QueuedCall] = []
        for call in await self._box.calls(session_id):
            try:
                found.append(await self._opened(call))
            except (Corrupt, *LOCKED):
                found.append(call if is_sealed_call(call) else replace(call, call={_PLAIN: call.call}))
        return found

    async def _opened(self, call: QueuedCall) -> QueuedCall:
        if not is_sealed_call(call):
            text = "a posted call is in plain text, though its place is encrypted: it was posted without the keys"
            raise Corrupt(text, session=call.session_id)
        cipher = await self._cipher_of(call.session_id)
        plain = call_of(cipher.open_text(_name(call), cast("str", call.call[_SEALED])))
        error = call.error
        if error.startswith(_PREFIX):
            error = cipher.open_text(f"error {_name(call)}", error.removeprefix(_PREFIX))
        return replace(call, call=plain, error=error)


def is_sealed_call(call: QueuedCall) -> bool:
    return set(call.call) == {_SEALED} and isinstance(call.call[_SEALED], str)


def _name(call: QueuedCall) -> str:
    return "\0".join((call.session_id, call.agent_id, call.token))
