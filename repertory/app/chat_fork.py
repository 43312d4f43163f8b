"""A session to chat in, made of what another one was."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from repertory.app.operations.sessions import Sessions
from repertory.errors import StoreNotFound

if TYPE_CHECKING:
    from repertory.app.operations.positions import Position
    from repertory.app.sessions import SessionPlace

DEFAULT_AGENT = "default"


class ForkedChat(NamedTuple):
    """Where to chat."""

    session_id: str
    agent_id: str


async def fork_for_chat(place: SessionPlace, source: str, new_id: str | None) -> ForkedChat:
    """Fork `SESSION` or `SESSION@POSITION`: the agent that is alone in it, or `default`. Without a new id, the first of
    `SESSION-2`, `SESSION-3` and so on that is free.

    Errors: `NotFound`, `AlreadyExists`, `Invalid`, those of the place.
    """
    async with Sessions(place) as sessions:
        there = {info.session_id: sorted(info.agents) for info in await sessions.list()}
        session_id, at = source_in(source, there)
        agents = there.get(session_id)
        if agents is None:
            raise StoreNotFound("no such session", session=session_id)
        agent_id = agents[0] if len(agents) == 1 else DEFAULT_AGENT
        new_id = new_id or next(name for n in count(2) if (name := f"{session_id}-{n}") not in there)
        await sessions.fork(session_id, new_id, at=at, agent=agent_id)
        return ForkedChat(new_id, agent_id)
    raise AssertionError


def source_in(source: str, there: dict[str, list[str]]) -> tuple[str, Position]:
    """The session and the position that are meant. An id with an `@` in it is known by being there."""
    session_id, at, position = source.rpartition("@")
    if source in there or not at:
        return source, None
    return session_id, int(position) if position.isdecimal() else position
