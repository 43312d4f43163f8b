"""Owners that come and go on a memory that fails and lags behind, fight each other, and are joined by another program:
nothing acknowledged is lost, and nothing is said twice.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import anyio
import pytest

from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, text_of
from repertory.errors import RepertoryError, Retryable, SessionBusy
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY, DirectEvents, FakeMemory, StoredEvent

pytestmark = pytest.mark.anyio

TURNS = 120


@dataclass
class World:
    """The memory, what has been acknowledged, and what others have added."""

    rng: random.Random
    memory: FakeMemory = field(default_factory=FakeMemory)
    fault_rate: float = 0.03
    kept: list[str] = field(default_factory=list)
    """What must be there."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.memory.lag = self.lag

    def lag(self, event: StoredEvent) -> int:
        """Some events are seen later than others."""
        return event.number % 3 if event.number % 7 == 0 and self.fault_rate else 0

    def fault(self, operation: str) -> str | None:
        if self.rng.random() < self.fault_rate:
            return self.rng.choice(["refused", "lost", "throttled"])
        return None

    def store(self) -> AgentCoreSessionStore:
        settings = AgentCoreSettings(
            prove_s=self.rng.choice([0.0, 5.0]), event_bytes_max=self.rng.choice([1, 1_000_000]), settle_s=1.0
        )
        return AgentCoreSessionStore(
            DirectEvents(self.memory, plan=self.fault, latency_s=lambda: self.rng.random() / 10),
            owner=f"owner-{next(self.numbers)}",
            wall=lambda: 1_700_000_000 + anyio.current_time(),
            entropy=self.rng.randbytes,
            settings=settings,
        )

    def add_from_outside(self) -> None:
        text = f"theirs {next(self.numbers)}"
        record = {"message": {"role": self.rng.choice(["user", "assistant"]), "content": [{"text": text}]}}
        item = {"conversational": {"content": {"text": json.dumps({**record, "message_id": 0})}, "role": "USER"}}
        fields = {"memoryId": MEMORY, "actorId": ACTOR, "sessionId": "s", "payload": [item]}
        self.memory.call("CreateEvent", {**fields, "eventTimestamp": 1_700_000_000 + anyio.current_time()})
        self.kept.append(text)


@dataclass
class Owner:
    """Somebody who owns the session, or thinks so."""

    world: World
    store: AgentCoreSessionStore
    lease: Lease | None = None
    appender: Appender | None = None

    async def turn(self) -> None:
        """Open the session when it is not open, and say something, now and then once more when that has failed."""
        if self.lease is None:
            await self.open()
        if self.lease is None or self.appender is None:
            return
        texts, rows = self.rows(self.appender)
        while self.lease is not None:
            (outcome,) = await self.store.append([Batch(lease=self.lease, rows=rows)])
            if isinstance(outcome, Position):
                self.world.kept += texts
                return
            assert isinstance(outcome, RepertoryError)
            if not isinstance(outcome, Retryable) or self.world.rng.random() < 0.3:
                self.lease = None

    async def open(self) -> None:
        try:
            lease, _ = await self.store.acquire("s", takeover=self.world.rng.random() < 0.5)
            rows = list(await self.store.load("s", "default"))
        except RepertoryError:
            return
        restored = restore(rows, session_id="s")
        self.lease, self.appender = lease, Appender("default", restored.fold, restored.link, self.world.rng.randbytes)

    def rows(self, appender: Appender) -> tuple[list[str], list[Row]]:
        """What it says next: one message or several, and sometimes a state."""
        texts: list[str] = []
        rows: list[Row] = []
        for _ in range(self.world.rng.randrange(1, 4)):
            fold = appender.fold
            prompt = fold.last_message is None or fold.last_message["role"] == "assistant"
            texts.append(f"ours {next(self.world.numbers)}")
            message: Message = {"role": "user" if prompt else "assistant", "content": [{"text": texts[-1]}]}
            record = MessageAdded(at=1.0, message=message, turn=max(1, fold.turns + prompt), index=fold.message_count)
            rows.append(appender.append(record))
            if self.world.rng.random() < 0.3:
                rows.append(appender.append(StateChanged(at=1.0, set={"last": texts[-1]})))
        return texts, rows

    async def leave(self) -> None:
        if self.lease is not None:
            lease, self.lease = self.lease, None
            try:
                await give_up(self.store, lease)
            except RepertoryError:
                return


async def test_nothing_acknowledged_is_lost_and_nothing_is_said_twice(rng: random.Random) -> None:
    world = World(rng)
    owners = [Owner(world, world.store()) for _ in range(3)]
    for _ in range(TURNS):
        owner = rng.choice(owners)
        match rng.choices(["turn", "leave", "die", "outside", "wait"], [60, 10, 5, 10, 15])[0]:
            case "turn":
                await owner.turn()
            case "leave":
                await owner.leave()
            case "die":
                owners[owners.index(owner)] = Owner(world, world.store())
            case "outside":
                world.add_from_outside()
            case _:
                await anyio.sleep(rng.choice([0.5, 6.0, 40.0]))
    world.fault_rate = 0.0
    last = Owner(world, world.store())
    while last.lease is None:
        try:
            last.lease, _ = await last.store.acquire("s", takeover=True)
        except SessionBusy:
            continue
    rows = await last.store.load("s", "default", whole=True)
    said = Counter(text_of(message) for message in messages_of(records_of(rows, session_id="s")).values())
    assert {text: count for text, count in said.items() if count > 1} == {}
    assert [text for text in world.kept if text not in said] == []
    assert len(world.kept) > TURNS // 8
