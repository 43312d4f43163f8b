"""Random damage to sessions that are kept as snapshots or events: flips, cuts, deletions, zeroed blocks, swapped files.

Whoever reads gets what was there before, or an error that names the place; a repair leaves what can be proved, and puts
everything aside. `python -m tests.simulation.damaged_documents --seeds 300` is the long campaign.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from repertory import Sessions, SnapshotSessions
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import Batch, Position, give_up
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import iso
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from tests.app.orchestration.snapshot_shelf import SnapshotShelf
from tests.backends.sessions.agentcore_memory import ACTOR, FakeMemory
from tests.backends.sessions.agentcore_writer import own, put
from tests.backends.sessions.agentcore_writer import said as said_item
from tests.core.journal.journal_driver import COMMANDS, Driver
from tests.operations.operated_places import AgentCorePlace, random_journal

KINDS = ("snapshots", "agentcore")
AGENT = "agent"
_BEGAN_AT = time.time() - 1000.0
"""By the clock of memories, that was at zero, as it was for the random journals: nothing in them is old."""


class Shelf(MutableMapping[str, bytes]):
    """The objects of a bucket in memory, by key."""

    def __init__(self, shelf: ObjectShelf) -> None:
        self.shelf = shelf

    def __getitem__(self, key: str) -> bytes:
        return self.shelf.objects[key].body

    def __setitem__(self, key: str, body: bytes) -> None:
        self.shelf.objects[key] = self.shelf.objects[key]._replace(body=body, version=os.urandom(8).hex())

    def __delitem__(self, key: str) -> None:
        del self.shelf.objects[key]

    def __iter__(self) -> Any:
        return iter(sorted(self.shelf.objects))

    def __len__(self) -> int:
        return len(self.shelf.objects)


class Payloads(MutableMapping[str, bytes]):
    """What the events of a memory say, by event and item, and the metadata of ours, by event and name."""

    def __init__(self, memory: FakeMemory) -> None:
        self.memory = memory

    def _item(self, key: str) -> tuple[dict[str, Any], str]:
        event_id, _, place = key.partition("/")
        (event,) = [event for event in self.memory.events("s") if event.fields["eventId"] == event_id]
        if not place.isdigit():
            return event.fields["metadata"][place], "stringValue"
        item = event.fields["payload"][int(place)]
        return (item, "blob") if "blob" in item else (item["conversational"]["content"], "text")

    def __getitem__(self, key: str) -> bytes:
        item, name = self._item(key)
        return str(item[name]).encode("utf-8", "surrogatepass")

    def __setitem__(self, key: str, body: bytes) -> None:
        item, name = self._item(key)
        item[name] = body.decode("utf-8", "replace")

    def __delitem__(self, key: str) -> None:
        """The whole event goes: nothing else can be taken from one."""
        del self.memory.sessions[ACTOR, "s"][key.partition("/")[0]]

    def __iter__(self) -> Any:
        return iter(
            f"{each.fields['eventId']}/{place}"
            for each in self.memory.events("s")
            for place in (*range(len(each.fields["payload"])), *each.fields.get("metadata", {}))
        )

    def is_deletable(self, key: str) -> bool:
        """Whether nobody but the owner may delete the event: others delete what they have said themselves."""
        return f"{key.partition('/')[0]}/repertory" in list(self)

    def __len__(self) -> int:
        return len(list(iter(self)))


def place_for(kind: str) -> tuple[Any, MutableMapping[str, bytes]]:
    """A place for sessions, and the documents in it."""
    match kind:
        case "snapshots":
            shelf = SnapshotShelf()
            return SnapshotSessions(shelf, snapshot_trigger=lambda: True), Shelf(shelf.shelf)
        case _:
            core = AgentCorePlace(wall=lambda: time.time() - _BEGAN_AT)
            return core, Payloads(core.memory)


@dataclass
class Campaign:
    """What became of the seeds so far."""

    counts: Counter[str] = field(default_factory=Counter[str])

    async def run(self, kind: str, seed: int) -> None:
        """One session, damaged once. Raises when it is not as it must be."""
        rng = random.Random(seed)
        place, documents = place_for(kind)
        if isinstance(place, AgentCorePlace) and rng.random() < 0.3:
            await talk_in_turns(place, rng)
            before = await read(place)
        else:
            driver = random_journal(rng, [name for name in COMMANDS if "redact" not in name])
            await commit(place, driver, rng)
            before = await read(place)
            assert [row.body for row in before] == [row.body for row in driver.rows]
        what, keys = damage(rng, documents)
        where = f"kind={kind} seed={seed} {what} {keys}"
        told = await self._look(place, before, where, keys)
        sessions = Sessions(place)
        found = await sessions.doctor()
        assert found.ok == (told is None and not await damages(place)), where
        report = await sessions.doctor(repair=True)
        assert report.ok, f"{where}: {report}"
        assert (await sessions.doctor()).ok, where
        after = await read(place)
        if told is None:
            assert said(after) == said(before), f"{where}: the repair made it worse"
        else:
            check_kept(said(before), said(after), where)
        self.counts[f"{kind}: {what}: {'same' if told is None else 'told and repaired'}"] += 1

    async def _look(self, place: Any, before: list[Row], where: str, keys: list[str]) -> str | None:
        """What whoever reads is told; None when they get what was there before."""
        told: list[str] = []
        for owner in (False, True):
            try:
                found = await read(place, owner=owner)
            except RepertoryError as error:
                told.append(str(error))
            else:
                assert said(found) == said(before), f"{where}: something else is read, and nobody is told"
                bodies = [row.body for row in found[: len(before)]]
                assert bodies == [row.body for row in before], f"{where}: other rows are read, and nobody is told"
        if told:
            parts = {part for key in keys for part in (key, f"{key.rsplit('/', 2)[0]}/'")}
            parts |= {part for key in keys if "#" in key for part in (key.partition("/")[0], "row ")}
            assert any(part in text for part in parts for text in told), f"{where}: {told}"
        return told[0] if told else None


async def commit(place: Any, driver: Driver, rng: random.Random) -> None:
    store = place.open_store()
    lease, _ = await store.acquire("s")
    rows = list(driver.rows)
    while rows:
        count = rng.randint(1, 4)
        await store.load("s", AGENT)
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[:count])])
        assert isinstance(outcome, Position), outcome
        rows = rows[count:]
    await give_up(store, lease)
    await store.aclose()


async def talk_in_turns(place: AgentCorePlace, rng: random.Random) -> None:
    """A conversation that others go on with from time to time."""
    wanted: list[str] = []
    for number in range(rng.randint(2, 6)):
        texts = [f"question {number}", f"answer {number}"]
        if rng.random() < 0.5:
            now = iso(place.wall())
            put(place.memory, [said_item("user", texts[0], now), said_item("assistant", texts[1], now)])
        else:
            store = place.open_store()
            writer = await own(store, AGENT)
            writer.at = place.wall()
            await writer.say(*texts)
            await store.aclose()
        wanted += texts
    assert said(await read(place)) == wanted


async def read(place: Any, *, owner: bool = True) -> list[Row]:
    """Every row of the agent, as somebody who looks, or who opens the session."""
    store = place.open_store()
    try:
        if owner:
            lease, _ = await store.acquire("s", takeover=True)
            await store.load("s", AGENT)
            rows = list(await store.load("s", AGENT, whole=True))
            await give_up(store, lease)
            return rows
        return list(await store.load("s", AGENT, whole=True))
    finally:
        await store.aclose()


async def damages(place: Any) -> list[Any]:
    store = place.open_store()
    try:
        return list(await store.examine("s"))
    finally:
        await store.aclose()


def said(rows: list[Row]) -> list[str]:
    """What was ever said, in order."""
    return [text_of(message) for message in messages_of(records_of(rows)).values()]


def check_kept(before: list[str], after: list[str], where: str) -> None:
    """What is left is what was said, but for the messages that were damaged, as long as it goes."""
    same = sum(left == right for left, right in zip(before, after, strict=False))
    assert len(after) <= len(before), where
    rest = iter(before)
    assert same >= len(after) - 2 or all(text in rest for text in after), f"{where}: {before} became {after}"


def may_go(documents: MutableMapping[str, bytes], key: str) -> bool:
    """Whether it is damage when that is gone."""
    return not isinstance(documents, Payloads) or documents.is_deletable(key)


def damage(rng: random.Random, documents: MutableMapping[str, bytes]) -> tuple[str, list[str]]:
    """Do something bad to one document, or to two. What, and to which."""
    keys = [key for key in documents if not key.startswith(("s/journal/", ".repertory", "s/repertory"))]
    key = rng.choice(keys)
    body = documents[key]
    what = rng.choice(["flipped", "flipped", "flipped", "cut", "deleted", "zeroed", "swapped", "lengthened"])
    start = rng.randrange(len(body)) if body else 0
    match what:
        case "flipped":
            documents[key] = body[:start] + bytes([body[start] ^ 1 << rng.randrange(8)]) + body[start + 1 :]
        case "cut":
            documents[key] = body[:start]
        case "zeroed":
            documents[key] = body[:start] + bytes(len(body[start : start + 64])) + body[start + 64 :]
        case "lengthened":
            documents[key] = body + rng.choice([b"}", b"\0" * 10, body])
        case "deleted" if may_go(documents, key):
            del documents[key]
        case _:
            other = rng.choice(keys)
            documents[key], documents[other] = documents[other], documents[key]
            return "swapped", [key, other]
    return what, [key]


async def main(seeds: int, first: int) -> None:
    campaign = Campaign()
    for seed in range(first, first + seeds):
        for kind in KINDS:
            await campaign.run(kind, seed)
    for name, count in sorted(campaign.counts.items()):
        print(f"{count:6} {name}")
    print(f"damaged documents: seeds {first} to {first + seeds - 1}, {sum(campaign.counts.values())} sessions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Damage sessions that are kept as documents.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    anyio.run(main, options.seeds, options.first)
