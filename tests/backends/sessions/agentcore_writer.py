"""Owners of a session in a memory without a network, what they say, and what other programs write beside them."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, Restored, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, text_of
from repertory.errors import RepertoryError
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY, DirectEvents, FakeMemory

WAIT_S = 200.0
QUICK = AgentCoreSettings(prove_s=0.0)

_owners = itertools.count()


@asynccontextmanager
async def opened(
    memory: FakeMemory, settings: AgentCoreSettings = QUICK, *, behind_s: float = 0.0, **options: Any
) -> AsyncIterator[AgentCoreSessionStore]:
    """A store of its own owner, whose clock is behind that of others, closed in the end, all within a bound."""
    store = AgentCoreSessionStore(
        DirectEvents(memory, **options),
        owner=f"owner-{next(_owners)}",
        wall=lambda: 1_700_000_000 + anyio.current_time() - behind_s,
        entropy=lambda size: next(_owners).to_bytes(size),
        settings=settings,
    )
    with anyio.fail_after(WAIT_S):
        try:
            yield store
        finally:
            await store.aclose()


class Writer:
    """An owner of the session `s`, and what it says."""

    at = 5.0
    """When it says that, in epoch seconds."""

    def __init__(self, store: AgentCoreSessionStore, lease: Lease, rows: Sequence[Row], agent_id: str) -> None:
        self.store, self.lease = store, lease
        self.restored: Restored = restore(rows, session_id="s")
        self.appender = Appender(agent_id, self.restored.fold, self.restored.link, lambda size: b"s" * size)

    @property
    def texts(self) -> list[str]:
        """What the model would be shown."""
        return [text_of(message) for _, message in self.appender.fold.shown]

    def message(self, text: str, **more: Any) -> Row:
        fold = self.appender.fold
        prompt = fold.last_message is None or fold.last_message["role"] == "assistant"
        message: Message = {"role": "user" if prompt else "assistant", "content": [{"text": text}]}
        turn = max(1, fold.turns + prompt)
        return self.appender.append(
            MessageAdded(at=self.at, message=message, turn=turn, index=fold.message_count, **more)
        )

    async def append(self, *rows: Row, erase: Sequence[tuple[str, int]] = ()) -> Position | RepertoryError:
        (outcome,) = await self.store.append([Batch(lease=self.lease, rows=rows, erase=erase)])
        return outcome

    async def say(self, *texts: str) -> Position | RepertoryError:
        """Messages in one commit."""
        return await self.append(*(self.message(text) for text in texts))

    async def set(self, **state: Any) -> Position | RepertoryError:
        return await self.append(self.appender.append(StateChanged(at=5.0, set=state)))

    async def release(self) -> None:
        await give_up(self.store, self.lease)


async def own(store: AgentCoreSessionStore, agent_id: str = "default", *, takeover: bool = False) -> Writer:
    lease, _ = await store.acquire("s", takeover=takeover)
    return Writer(store, lease, await store.load("s", agent_id), agent_id)


async def everything(memory: FakeMemory, agent_id: str = "default") -> list[str]:
    """The texts of a session as somebody finds them who only looks."""
    async with opened(memory) as store:
        rows = await store.load("s", agent_id, whole=True)
    return [text_of(message) for message in messages_of(records_of(rows, session_id="s")).values()]


def put(memory: FakeMemory, payload: list[Any], *, at_ms: int | None = None, **metadata: str) -> str:
    """An event of another program, by default behind all others."""
    last = memory.events("s")[-1].fields["eventTimestamp"] if memory.events("s") else 1_700_000_000.0
    fields = {"memoryId": MEMORY, "actorId": ACTOR, "sessionId": "s", "payload": payload}
    at_s = last + 0.001 if at_ms is None else at_ms / 1000
    said = {key: {"stringValue": value} for key, value in metadata.items()}
    return memory.call("CreateEvent", {**fields, "eventTimestamp": at_s, "metadata": said})["event"]["eventId"]


def said(role: str, text: str, at: str = "2023-11-14T22:13:20+00:00") -> dict[str, Any]:
    """A message as the package writes it."""
    record = {
        "message": {"role": role, "content": [{"text": text}]},
        "message_id": 0,
        "redact_message": None,
        "created_at": at,
        "updated_at": at,
    }
    return {"conversational": {"content": {"text": json.dumps(record)}, "role": role.upper()}}


def agent_record(agent_id: str = "default", removed: int = 0, **state: Any) -> dict[str, Any]:
    manager = {"__name__": "SlidingWindowConversationManager", "removed_message_count": removed, "model_call_count": 1}
    record = {"agent_id": agent_id, "state": state, "conversation_manager_state": manager, "_internal_state": {}}
    return {"blob": json.dumps({**record, "created_at": "2023-11-14T22:13:20+00:00", "updated_at": ""})}


def put_agent(memory: FakeMemory, agent_id: str = "default", removed: int = 0, **state: Any) -> None:
    put(memory, [agent_record(agent_id, removed, **state)], stateType="AGENT", agentId=agent_id)


def kinds(memory: FakeMemory) -> list[str]:
    """What the events of the session are, oldest first."""
    marks = [
        event.fields.get("metadata", {}).get("repertory", {}).get("stringValue", "theirs")
        for event in memory.events("s")
    ]
    return [mark.partition(".")[0] for mark in marks]


def bytes_of(memory: FakeMemory) -> str:
    """All that the events of the session say, and what their rows say."""
    rows = [
        row
        for event in memory.events("s")
        for item in event.fields["payload"]
        if str(item.get("blob", "")).startswith('{"repertory"')
        for row in json.loads(item["blob"])["repertory"].get("rows", ())
    ]
    bodies = [base64.b64decode(row[-1]).decode(errors="replace") for row in rows]
    return json.dumps([[event.fields for event in memory.events("s")], bodies])
