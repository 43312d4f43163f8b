"""A bucket with one session of the documented layout, which owners and other programs write to."""

from __future__ import annotations

import json
import random

import anyio

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Create
from repertory.backends.sessions.documents.journal import TreeSettings
from repertory.backends.sessions.documents.store import MessageTreeStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults

FAULTS = ObjectFaults(error_rate=0.04, lost_rate=0.04, throttle_rate=0.02)
WHILE_OPENING = ObjectFaults(error_rate=0.005, lost_rate=0.005)
"""Opening reads everything, so it takes milder faults to come to an end."""
MESSAGES = "session_s/agents/agent_default/messages/message_"


class World:
    """The bucket, what has been acknowledged, and what others have added."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shelf = ObjectShelf()
        self.kept: list[str] = []
        """What must be there, in this order: acknowledged by a store, or added from outside."""
        self.count = 0

    def store(self, number: int) -> tuple[MessageTreeStore, FaultyObjectStore]:
        faulty = FaultyObjectStore(MemoryObjectStore(self.shelf), self.rng, WHILE_OPENING)
        settings = TreeSettings(prove_s=self.rng.choice([0.0, 5.0]), keep_heads=self.rng.random() < 0.5)
        store = MessageTreeStore(
            faulty,
            owner=f"owner-{number}",
            life=TimeToLive(anyio.current_time, 10.0),
            wall=anyio.current_time,
            entropy=self.rng.randbytes,
            settings=settings,
        )
        return store, faulty

    def rows(self, appender: Appender) -> tuple[list[str], list[Row]]:
        """What an owner says next: a prompt, an answer or both, and sometimes a state."""
        said: list[str] = []
        rows: list[Row] = []
        for _ in range(self.rng.randrange(1, 4)):
            fold = appender.fold
            prompt = fold.last_message is None or fold.last_message["role"] == "assistant"
            self.count += 1
            text = f"ours {self.count}"
            message: Message = {"role": "user" if prompt else "assistant", "content": [{"text": text}]}
            turn = fold.turns + prompt
            rows.append(
                appender.append(MessageAdded(at=1.0, message=message, turn=max(1, turn), index=fold.message_count))
            )
            said.append(text)
            if self.rng.random() < 0.3:
                rows.append(appender.append(StateChanged(at=1.0, set={"last": text})))
        return said, rows

    async def add_from_outside(self) -> None:
        numbers = [int(key.removeprefix(MESSAGES)[:-5]) for key in self.shelf.objects if key.startswith(MESSAGES)]
        self.count += 1
        text = f"theirs {self.count}"
        said = {"role": self.rng.choice(["user", "assistant"]), "content": [{"text": text}]}
        body = json.dumps(
            {"message": said, "message_id": 0, "redact_message": None, "created_at": "", "updated_at": ""}
        )
        key = f"{MESSAGES}{max(numbers, default=-1) + 1}.json"
        await MemoryObjectStore(self.shelf).put(key, body.encode(), Create())
        self.kept.append(text)
