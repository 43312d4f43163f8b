"""Children that die before and after each request that changes a session on objects, and a look at what each has left.

Arguments: folder, seed, event loop, and `journals` or `documents` (a journal beside a tree). A child takes a session
with its first commit and gives it up with its last one, several times, and between two commits does what maintenance
would do. The first child survives, and reports its requests; each child after it is killed at another one of them.
Requests go out beside each other, so a child knows its own by step, moment and key, and not by its number, whatever
order the threads of a run have. Requests of one name recur with each call, on a longer journal: a child dies at the
first, at the last, and at one between that the seed chooses. After each, another owner finds every acknowledged row, in
order and once, and more can be added; if the dead one had the session, it gets it when the lease has run out, and not
before. The last line says at which requests of which steps children have died, and how often an owner had to wait.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec.structs import replace

from repertory.backends.objects.files import FileObjectStore
from repertory.backends.ports import Batch, ObjectStore, Position, SessionStore, give_up
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.documents.reading import BESIDE_TREE
from repertory.backends.sessions.journal import maintenance, ownership
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import verify_whole
from repertory.core.messages import text_of
from repertory.errors import SessionBusy
from repertory.testing.crash_points import CrashingObjectStore, CrashPoints
from tests.backends.sessions.journal_child import Writer
from tests.backends.sessions.killed_children.forked_children import DeadChild, forked

CALLS = 5
LEASE_S = 3600.0
"""Longer than the test takes, so that only files made older let a lease run out."""


def opened(objects: ObjectStore, owner: str, kind: str) -> tuple[SessionStore, ObjectSessionStore]:
    """The store, and that of its journals."""
    life = TimeToLive(time.time, LEASE_S)
    if kind == "journals":
        journals = ObjectSessionStore(objects, owner=owner, life=life)
        return journals, journals
    journals = ObjectSessionStore(objects, owner=owner, life=life, layout=BESIDE_TREE)
    return BucketSessionStore(journals, objects, wall=time.time, entropy=os.urandom), journals


class Points(CrashPoints):
    """Crash points that have names, and report the one at which a child dies, or all where it survives.

    Args:
        chosen: The name of the point at which to die, and its number among those of that name, from 1; None survives.
        report: Called with names.
    """

    def __init__(self, chosen: tuple[str, int] | None, report: Callable[[str], None]) -> None:
        super().__init__(1)
        self.step = "acquire"
        self._chosen, self._report = chosen, report
        self._reached = Counter[str]()

    def reach(self, label: str) -> None:
        when, request, key = label.split()
        kinds = [part for part in key.split("/")[2:] if part in ("head", "s", "c", "w", "messages", "agent.json")]
        name = f"{self.step}: {when} {request} {kinds[0] if kinds else key.rpartition('/')[2]}"
        self._reached[name] += 1
        dies = (name, self._reached[name]) == self._chosen
        if dies or self._chosen is None:
            self._report(name)
        if dies:
            super().reach(label)


async def work(folder: str, kind: str, rng: random.Random, points: Points, report: Callable[[str], None]) -> None:
    store, journals = opened(CrashingObjectStore(FileObjectStore(folder), points), "child", kind)
    writer = await Writer.open(store, "session", 0)
    lease, folds = writer.lease, 0

    async def commit(step: str, *, take: bool = False, release: bool = False) -> None:
        nonlocal folds
        points.step = step
        (outcome,) = await store.append([replace(writer.next(rng), take=take, release=release)])
        assert isinstance(outcome, Position), outcome
        report(f"acknowledged {outcome.seq}")
        if release and not outcome.released:  # The head would have become too large.
            points.step = "release"
            await give_up(store, lease)
        if not release:
            points.step = "maintenance"
            folds += journals._owned["session"].fold_due
            await maintenance._tidy(journals._owned["session"])
            await maintenance.merge(journals._owned["session"])

    await commit("commit")
    await commit("give up", release=True)
    for _ in range(CALLS):
        await commit("take", take=True)
        commits = 0
        while commits < 2 or not folds:  # Whatever the seed makes of their sizes.
            await commit("commit")
            commits += 1
        await commit("give up", release=True)


async def look(folder: str, kind: str, dead: DeadChild, waits: Counter[str]) -> None:
    acknowledged = max((int(line.split()[1]) for line in dead.reports if line.startswith("acknowledged")), default=0)
    store, _ = opened(FileObjectStore(folder), "parent", kind)
    try:
        lease, _ = await store.acquire("session")
        waits["free"] += 1
    except SessionBusy:
        await anyio.to_thread.run_sync(let_leases_run_out, Path(folder))
        lease, _ = await store.acquire("session")
        waits["busy"] += 1
    whole = await store.load("session", "default", whole=True)
    verify_whole(whole, session_id="session")
    assert len(whole) >= acknowledged, (dead, len(whole))
    said = [text_of(message) for message in messages_of(records_of(whole)).values()]
    assert [text.split()[:2] for text in said] == [["session", str(number)] for number in range(len(said))], dead
    restored = restore(await store.load("session", "default"), session_id="session")
    assert restored.fold.image() == restore(whole).fold.image(), dead
    assert restored.fold.last_seq == len(whole)
    appender = Appender("default", restored.fold, restored.link, os.urandom)
    rows = [appender.append(StateChanged(at=1.0, set={"n": number})) for number in range(2)]
    (first,) = await store.append([Batch(lease=lease, rows=rows[:1], release=True)])
    assert isinstance(first, Position), (dead, first)
    if not first.released:
        await give_up(store, lease)
    second = await store.append([Batch(lease=lease, rows=rows[1:], take=True)])
    assert second == [Position(agent_id="default", seq=rows[1].seq)]
    await give_up(store, lease)
    if kind == "documents":
        await anyio.to_thread.run_sync(check_documents, Path(folder), said)
    (info,) = await store.sessions()
    assert info.agents == {"default": rows[1].seq}
    await store.aclose()


def check_documents(folder: Path, said: list[str]) -> None:
    """The tree says what the journal says, in its order."""
    found = folder.glob("session_session/agents/agent_default/messages/message_*.json")
    bodies = {int(path.stem.removeprefix("message_")): json.loads(path.read_bytes()) for path in found}
    assert [text_of(bodies[number]["message"]) for number in sorted(bodies)] == said
    assert sorted(bodies) == list(range(len(bodies)))


def let_leases_run_out(folder: Path) -> None:
    """Make every object older than a lease lives."""
    for path in folder.rglob("*"):
        os.utime(path, (then := time.time() - 2 * LEASE_S, then), follow_symlinks=False)


def kill_points(reached: Mapping[str, int], rng: random.Random) -> Iterator[tuple[str, int]]:
    """Of the points of each name: the first, one between, and the last."""
    for name, count in reached.items():
        between = rng.randrange(2, count) if count > 2 else 1
        yield from ((name, number) for number in sorted({1, between, count}))


def main(folder: str, seed: int, loop: str, kind: str) -> None:
    maintenance.SEGMENTS_MERGED = 4
    ownership.SEGMENTS_MIN, ownership.SEGMENTS_MAX = 2, 4
    ownership.INLINE_BYTES_MAX, ownership.TAIL_BYTES = 5000, 2500

    def run(number: int, chosen: tuple[str, int] | None) -> DeadChild:
        def child(report: Callable[[str], None]) -> None:
            points = Points(chosen, report)
            anyio.run(work, f"{folder}/{number}", kind, random.Random(seed), points, report, backend=loop)

        dead = forked(number, child)
        anyio.run(look, f"{folder}/{number}", kind, dead, waits, backend=loop)
        return dead

    steps, waits = set[str](), Counter[str]()
    reached = Counter(line for line in run(0, None).reports if not line.startswith("acknowledged"))
    for number, at in enumerate(kill_points(reached, random.Random(seed)), 1):
        # A child may survive: how small random salts are packed decides whether some objects are put.
        dead = run(number, at)
        steps.update(each for each in dead.reports if not each.startswith("acknowledged"))
    print(json.dumps({"steps": sorted(steps), **waits}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
