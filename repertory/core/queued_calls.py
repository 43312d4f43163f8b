"""Calls that nobody waits for: as text, and which of those that wait are next."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from msgspec import Struct

from repertory.core.json_bytes import strict_json
from repertory.core.messages import Json
from repertory.core.tenants import tenant_part
from repertory.errors import Invalid, TooLarge

CALL_BYTES_MAX = 64 * 1024 * 1024
"""The largest call as JSON, on its way to a peer and in a queue."""
ENDED_TEXT = "each of its last owners has ended with it"
"""The reason of a call that is parked since too many owners have ended with it."""


class UnclaimedCall(Struct, frozen=True):
    """A call that nobody has, and that is not parked."""

    key: int
    session_id: str
    agent_id: str
    ready: bool
    """False if it was given back, and may not be tried again yet."""


def next_calls(
    waiting: Iterable[UnclaimedCall],
    taken: Collection[str],
    agents: Collection[str],
    limit: int,
    passing: Collection[str] = (),
) -> list[UnclaimedCall]:
    """The calls to take next, at most `limit`, of calls that come in the order in which they were queued: the oldest of
    each session that these agents serve, unless it is not ready. `taken`: the sessions of which somebody has a call.
    `passing`: tenants whose calls are passed over.
    """
    found: list[UnclaimedCall] = []
    met = set(taken)
    for call in waiting:
        if len(found) >= limit:
            break
        if call.agent_id in agents and call.session_id not in met:
            met.add(call.session_id)
            if call.ready and tenant_part(call.session_id) not in passing:
                found.append(call)
    return found


def call_text(call: Mapping[str, Json]) -> str:
    """A call as JSON of ASCII characters. Errors: `Invalid`; `TooLarge` for more than `CALL_BYTES_MAX`."""
    try:
        text = json.dumps(call, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("a call is kept as JSON, and this is none", cause=str(error)) from error
    if len(text) > CALL_BYTES_MAX:
        raise TooLarge("a call is too large for a queue", size_bytes=len(text), bytes_max=CALL_BYTES_MAX)
    return text


NO_CALL: Mapping[str, Json] = {}
"""The stand-in for a call that cannot be read."""


def call_of(text: object) -> Mapping[str, Json]:
    """The call that was made into this text; `NO_CALL` for any other: one bad line keeps no other call waiting."""
    try:
        call = strict_json(cast("str", text))
    except (TypeError, ValueError):
        return NO_CALL
    return cast("Mapping[str, Json]", call) if isinstance(call, dict) else NO_CALL


def plain_text(text: str) -> str:
    """A text that every place can keep: without NUL and lone surrogates."""
    return text.replace("\0", " ").encode(errors="replace").decode()
