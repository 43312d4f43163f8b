"""The runs of orchestrators in anyone's `SessionRepository`, as the objects of the documented layout.

A record is the document of the run. What is ours travels in its `_internal_state`: the key by which we know the
document, and the rows beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from repertory.app.session_repository import SessionMultiAgent
from repertory.core.message_tree.documents import OURS
from repertory.core.message_tree.spelling import parsed, written
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.session_repository import SessionRepository

_RUN = re.compile(r"session_(?P<session>[^/]+)/multi_agents/multi_agent_(?P<orchestrator>[^/]+)/(?P<rest>.*)")
_DOCUMENT = "multi_agent.json"


class RunPlace(NamedTuple):
    """Where an object lies."""

    session_id: str
    orchestrator_id: str
    name: str
    """Within the orchestrator's folder; empty for that."""


def run_place(key: str) -> RunPlace | None:
    """Where the object of that key lies; None when it is none of an orchestrator's."""
    found = _RUN.fullmatch(key)
    return None if found is None else RunPlace(found["session"], found["orchestrator"], found["rest"])


class RepositoryRuns:
    """Reads and writes them. Errors of every call: `SessionException`; `Invalid` where a repository keeps no runs."""

    def __init__(self, repository: SessionRepository, ask: Callable[..., Awaitable[object]]) -> None:
        """`ask` calls a method of the repository."""
        self._repository = repository
        self._ask = ask
        self._states: dict[tuple[str, str], dict[str, Any] | None] = {}

    async def names(self, place: RunPlace) -> list[str]:
        """The objects of an orchestrator."""
        state = await self._state(place)
        return [] if state is None else [_DOCUMENT, *_beside(state)]

    async def read(self, place: RunPlace) -> bytes | None:
        """One object; None when it is not there."""
        state = await self._state(place)
        if state is None:
            return None
        if place.name == _DOCUMENT:
            return _document(state)
        kept = _beside(state).get(place.name)
        return None if kept is None else json.dumps(kept).encode()

    async def write(self, place: RunPlace, body: bytes) -> None:
        """Put one object; the document comes before what lies beside it."""
        state = await self._state(place)
        if place.name == _DOCUMENT:
            made = parsed(body)
            ours = {"document": made.pop(OURS, None), "beside": {} if state is None else _beside(state)}
        elif state is not None:
            made = state
            ours = {**_hidden(state), "beside": {**_beside(state), place.name: json.loads(body)}}
        else:
            raise Invalid("a run comes before what lies beside it", orchestrator=place.orchestrator_id)
        internal = cast("dict[str, Any]", made.get("_internal_state") or {})
        made = {**made, "_internal_state": {**internal, OURS: ours}}
        write = self._method("create_multi_agent" if state is None else "update_multi_agent")
        await self._ask(write, place.session_id, SessionMultiAgent(place.orchestrator_id, made))
        self._states[place.session_id, place.orchestrator_id] = made

    async def _state(self, place: RunPlace) -> dict[str, Any] | None:
        key = place.session_id, place.orchestrator_id
        if key not in self._states:
            found = await self._ask(self._method("read_multi_agent"), *key)
            self._states[key] = cast("dict[str, Any] | None", found)
        return self._states[key]

    def _method(self, name: str) -> Callable[..., object]:
        method = getattr(self._repository, name, None)
        if method is None:
            kind = type(self._repository).__name__
            raise Invalid(f"a session repository that keeps graphs and swarms has a method {name}", repository=kind)
        return cast("Callable[..., object]", method)


def _hidden(state: dict[str, Any]) -> dict[str, Any]:
    internal = state.get("_internal_state")
    ours = cast("dict[str, Any]", internal).get(OURS) if isinstance(internal, dict) else None
    return cast("dict[str, Any]", ours) if isinstance(ours, dict) else {}


def _beside(state: dict[str, Any]) -> dict[str, Any]:
    """What lies beside the document, by name."""
    found = _hidden(state).get("beside")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _document(state: dict[str, Any]) -> bytes:
    internal = cast("dict[str, Any]", state.get("_internal_state") or {})
    made = {**state, "_internal_state": {name: value for name, value in internal.items() if name != OURS}}
    mark = _hidden(state).get("document")
    return written(made if mark is None else {**made, OURS: mark})
