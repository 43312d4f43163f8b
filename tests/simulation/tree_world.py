"""A bucket with one session of the documented layout, which owners and other programs write to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import anyio

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Create
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, records_of
from repertory.core.journal.rows import Row
from repertory.core.message_tree.projection import pairs_of
from repertory.core.messages import Message, text_of
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from tests.backends.sessions.bucket_places import bucket_store

FAULTS = ObjectFaults(error_rate=0.04, lost_rate=0.04, throttle_rate=0.02)
WHILE_OPENING = ObjectFaults(error_rate=0.005, lost_rate=0.005)
"""Opening reads everything, so it takes milder faults to come to an end."""
MESSAGES = "session_s/agents/agent_default/messages/message_"


class World:
    """The bucket, what has been acknowledged, and what others have added."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shelf = ObjectShelf(anyio.current_time)
        self.kept: list[str] = []
        """What must be there, acknowledged by a store, or added from outside: each kind in its order."""
        self.count = 0

    def store(self, number: int) -> tuple[BucketSessionStore, FaultyObjectStore]:
        faulty = FaultyObjectStore(MemoryObjectStore(self.shelf), self.rng, WHILE_OPENING)
        store = bucket_store(
            faulty,
            owner=f"owner-{number}",
            life=TimeToLive(anyio.current_time, 10.0),
            wall=anyio.current_time,
            entropy=self.rng.randbytes,
        )
        return store, faulty

    def check(self, shown: Iterable[str]) -> None:
        """Each text is there once. Those from outside may follow others that were acknowledged later: while the session
        is owned, they are taken in when it is opened next.
        """
        kept = set(self.kept)
        texts = [text for text in shown if text in kept]
        for kind in ("ours", "theirs"):
            found, wanted = ([text for text in some if text.startswith(kind)] for some in (texts, self.kept))
            assert found == wanted, (found[-5:], wanted[-5:])

    async def check_mark(self, store: BucketSessionStore) -> None:
        """What the owner takes for the document of a message is that."""
        rows = list(await store.load("s", "default", whole=True))
        tree = store._trees.of("s")["default"]
        messages = [text_of(record.message) for _, record in records_of(rows) if isinstance(record, MessageAdded)]
        for index, number in pairs_of(tree.mark.runs):
            found = self.shelf.objects.get(f"{MESSAGES}{number}.json")
            assert found is not None or tree.is_behind
            assert found is None or text_of(json.loads(found.body)["message"]) == messages[index], (index, number)

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
