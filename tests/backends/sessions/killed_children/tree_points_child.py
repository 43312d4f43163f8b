"""Children that die at each call by which a session in documents changes files, and a look at what each has left.

Arguments: folder, seed, event loop. A child of this process opens a session, adds to it, releases it, takes it back and
adds again; the first is killed at the first such call, the next at the second, until one survives. After each, another
owner opens the session: every acknowledged row is there, each message has its document, nothing is left over, and more
can be added. The last line says how many children there were.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from repertory.backends.ports import Batch, Position, give_up
from repertory.backends.sessions.log import log_file
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import verify
from repertory.core.messages import Message, text_of
from repertory.testing.crash_points import CrashPoints
from repertory.testing.session_pages_contract import taken_back
from tests.backends.sessions.crash_child import Writer
from tests.backends.sessions.killed_children.forked_children import children
from tests.backends.sessions.tree_crash_child import open_tree

CALLS = ("mkdir", "write", "pwrite", "fsync", "link", "rename", "unlink", "ftruncate", "posix_fallocate")


async def work(folder: str, rng: random.Random, told: Callable[[int], None]) -> None:
    store = open_tree(folder, "child")
    writer = await Writer.open(store, "session")

    async def add(batch: Batch) -> None:
        (outcome,) = await store.append([batch])
        assert isinstance(outcome, Position), outcome
        told(outcome.seq)

    for _ in range(2):
        await add(writer.next(rng))
        first, second = writer.next(rng), writer.next(rng)
        await add(Batch(lease=first.lease, rows=[*first.rows, *second.rows]))
        await give_up(store, writer.lease)  # type: ignore[arg-type]
        assert await taken_back(store, writer.lease)  # type: ignore[arg-type]
    await add(writer.next(rng))
    await give_up(store, writer.lease)  # type: ignore[arg-type]
    await anyio.to_thread.run_sync(others_write, Path(folder))
    assert not await taken_back(store, writer.lease)  # type: ignore[arg-type]
    writer = await Writer.open(store, "session")
    texts = [text_of(message) for _, message in writer.appender.fold.shown]
    assert texts[-2:] == ["from elsewhere", "so it is"], texts
    assert texts[3] == "edited"
    await add(writer.next(rng))
    await store.aclose()


async def look(folder: str, acknowledged: int, number: int) -> None:
    store = open_tree(folder, f"parent-{number}")
    lease, _ = await store.acquire("session")
    rows, whole = await store.load("session", "default"), await store.load("session", "default", whole=True)
    verify(whole, session_id="session")
    assert len(whole) >= acknowledged, (number, len(whole), acknowledged)
    restored = restore(rows, session_id="session")
    row = Appender("default", restored.fold, restored.link, os.urandom).append(StateChanged(at=1.0, set={"n": number}))
    assert await store.append([Batch(lease=lease, rows=[row])]) == [Position(agent_id="default", seq=row.seq)]
    await give_up(store, lease)
    await store.sessions()
    await store.aclose()
    said = [text_of(message) for message in messages_of(records_of(whole)).values()]
    found = await anyio.to_thread.run_sync(documents, Path(folder))
    assert [text_of(message) for message in found] == said, number
    assert not await anyio.to_thread.run_sync(lambda: list(Path(folder).rglob(".repertory-*"))), number


def others_write(folder: Path) -> None:
    """Another program adds two messages, and edits one."""
    messages = folder / "session_session/agents/agent_default/messages"
    count = len(list(messages.glob("message_*.json")))
    for number, role, text in ((count, "user", "from elsewhere"), (count + 1, "assistant", "so it is")):
        said = {"message": {"role": role, "content": [{"text": text}]}, "message_id": number}
        (messages / f"message_{number}.json").write_text(
            json.dumps({**said, "created_at": "2026-11-21T06:03:59+00:00"})
        )
    edited = json.loads((messages / "message_3.json").read_text())
    edited["message"]["content"] = [{"text": "edited"}]
    (messages / "new").write_text(json.dumps(edited))
    (messages / "new").replace(messages / "message_3.json")


def documents(folder: Path) -> list[Message]:
    """The messages in the documents, in order."""
    paths = (folder / "session_session/agents/agent_default/messages").glob("message_*.json")
    ordered = sorted(paths, key=lambda path: int(path.stem.removeprefix("message_")))
    return [json.loads(path.read_bytes())["message"] for path in ordered]


def child(folder: str, seed: int, loop: str, crash_at: int, report: Callable[[str], None]) -> None:
    points = CrashPoints(crash_at)

    def dying(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def called(*arguments: object, **keywords: object) -> object:
            points.reach(name)
            return call(*arguments, **keywords)

        return called

    for name in CALLS:
        setattr(os, name, dying(name))
    log_file._sync_data = dying("fdatasync")  # type: ignore[assignment]
    anyio.run(work, folder, random.Random(seed), lambda seq: report(str(seq)), backend=loop)


def main(folder: str, seed: int, loop: str) -> None:
    for dead in children(lambda number, report: child(f"{folder}/{number}", seed, loop, number, report)):
        place = f"{folder}/{dead.number}"
        if Path(place).exists():
            anyio.run(look, place, max(map(int, dead.reports), default=0), dead.number, backend=loop)
    print(dead.number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
