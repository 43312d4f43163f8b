"""A writer without the keys, at an encrypted place and at the place of its keys: what readers with the keys accept.

The writer may put plain text, another session's ciphertext, or what was stored before, in the place of anything that is
stored, with numbers and links that fit. What must hold: a reader gets a typed error, or what the session itself said at
that position; no word of the writer, and none of another session. What the writer removes is gone.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from repertory import Agent, JournalSessions, LocalKeys, ScriptedModel, Sessions
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import (
    Batch,
    ObjectStore,
    Overwrite,
    SessionStore,
    call_queue_of,
    give_up,
    pending_work_of,
)
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.core.messages import Json
from repertory.core.pending_work import DueTime
from repertory.core.queued_calls import NO_CALL
from repertory.errors import RepertoryError
from tests.campaigns.campaigns import Report
from tests.simulation.encrypted_places import EncryptedPlace, place_with, seen_with, session_in

MASTER = b"m" * 32
SESSIONS = ("s", "t")
FORGED = "FORGED"
"""What the writer would like somebody to read, or to do."""
_AGENT = "default"


def word_of(session_id: str) -> str:
    """What only this session says."""
    return f"WORD-{session_id}-WORD"


async def fill(place: EncryptedPlace, session_id: str, word: str, turns: int = 2) -> None:
    """Turns, a mark, posted calls, one of which has failed, and pending work."""
    agent = Agent(
        ScriptedModel([f"{word} answer"], loop=True),
        session_manager=session_in(place, session_id),
        callback_handler=None,
        agent_id=_AGENT,
    )
    async with agent:
        for number in range(turns):
            await agent.invoke_async(f"{word} {number}")
        agent.state.set("word", word)
        await agent.invoke_async(f"{word} end")
    await Sessions(place).mark(session_id, f"{word} label")
    store = place.open_store()
    try:
        box = call_queue_of(store)
        for token in ("t1", "t2") if box is not None else ():
            assert box is not None
            call = {"prompt": f"{word} call {token}", "options": {}}
            await box.put(QueuedCall(session_id=session_id, agent_id=_AGENT, token=token, call=call))
        if box is not None:
            for call in await box.take(1, [_AGENT]):
                await box.again(call, 0.0, f"{word} error", park=True)
        lease, _ = await store.acquire(session_id)
        await store.append([Batch(lease=lease, rows=(), due=DueTime(agent_id=_AGENT, at=4e9, why="timer"))])
        await give_up(store, lease)
    finally:
        await store.aclose()


@dataclass
class Seen:
    """What a reader with the keys was given of a session, and what it was refused with."""

    texts: list[str] = field(default_factory=list[str])
    errors: list[RepertoryError] = field(default_factory=list[RepertoryError])

    async def of(self, reading: Awaitable[object]) -> None:
        try:
            self.texts.append(str(await reading))
        except RepertoryError as error:
            self.errors.append(error)


async def look(place: EncryptedPlace, session_id: str) -> Seen:
    """Everything that is read of a session, and the calls that would be made for it."""
    seen, store = Seen(), place.open_store()

    async def rows() -> str:
        found = await store.load(session_id, _AGENT, whole=True)
        restore(found, session_id=session_id)
        return contents(found)

    async def labels() -> str:
        positions = store.capabilities.positions
        if positions is None or positions.labels is None:
            return ""
        return contents(await positions.labels(session_id, _AGENT))

    async def pending_work() -> list[object]:
        found = await pending_work_of(store, session_id)
        return [(work.at + 0.0, work.parked) for work in found]  # `why` is no content, and wakes pending work in fact.

    async def taken() -> list[object]:
        box = call_queue_of(store)
        calls = [] if box is None else await box.take(9, [_AGENT])
        return [call.call for call in calls if call.session_id == session_id]

    try:
        await seen.of(rows())
        await seen.of(labels())
        await seen.of(pending_work())
        await seen.of(taken())
    finally:
        await store.aclose()
    await seen.of(Sessions(place).show(session_id))
    await seen.of(Sessions(place).marks(session_id))
    return seen


def contents(rows: Sequence[Row]) -> str:
    """What the rows say. Errors: those of looking into them."""
    return " ".join(str(getattr(row.body, "plain", row.body)) for row in rows if not row.erased)


def faults_in(seen: Seen, session_id: str) -> list[str]:
    """What the reader should not have been given."""
    others = (FORGED, *(word_of(other) for other in SESSIONS if other != session_id))
    return [f"{session_id}: {other} in {text[:300]}" for text in seen.texts for other in others if other in text]


# Rows, in every engine: the writer has the same place without the keys.


def linked(rows: Sequence[Row]) -> list[Row]:
    """The rows with links that fit."""
    made: list[Row] = []
    for row in rows:
        made.append(row._replace(link=link_of(made[-1].link if made else first_link(row.agent_id), row)))
    return made


def row_edits(
    ours: Sequence[Row], others: Sequence[Row], plain: Sequence[Row], rng: random.Random
) -> Iterator[tuple[str, list[Row]]]:
    """By name: whole journals as the writer would have them. `plain`: of the same turns, in the writer's words."""
    place = rng.randrange(len(ours))
    row, other, forged = ours[place], others[place % len(others)], plain[place % len(plain)]
    for name, version, body in (
        ("plain text", forged.version, forged.body),
        ("plain text that says it is sealed", row.version, forged.body),
        ("ciphertext that says it is plain", row.version & 0x7F, bytes(row.body)),
        ("another session's", row.version, bytes(other.body)),
        ("another row's", row.version, bytes(ours[(place + 1) % len(ours)].body)),
        ("a changed byte", row.version, bytes(row.body)[:-1] + bytes([row.body[-1] ^ 1])),
        ("a changed head", row.version, bytes([2]) + rng.randbytes(8) + bytes(row.body)[9:]),
        ("cut off", row.version, bytes(row.body)[: rng.randrange(60)]),
    ):
        changed = row._replace(version=version, body=body)
        yield name, [*ours[:place], changed, *ours[place + 1 :]]
    yield "another kind", [*ours[:place], row._replace(kind=rng.randrange(20)), *ours[place + 1 :]]
    yield "an erased row", [*ours[:place], row.without_content(), *ours[place + 1 :]]
    yield "forged rows behind it", [*ours, *(each._replace(seq=len(ours) + each.seq) for each in plain)]
    yield "the whole of another session", [each._replace(body=bytes(each.body)) for each in others]
    yield "nothing but forged rows", list(plain)
    yield "fewer rows", list(ours[: place + 1])
    erased = row.without_content()._replace(kind=rng.randrange(1, 17), version=1)
    ends = [erased._replace(seq=len(ours) + number, low=len(ours) + 1) for number in (1, 2)]
    yield "erased rows behind it, from which reading begins", [*ours, *ends]


async def bare_rows(store: SessionStore, session_id: str) -> list[Row]:
    return [row._replace(body=bytes(row.body)) for row in await store.load(session_id, _AGENT, whole=True)]


async def walk_rows(place: EncryptedPlace, plain: EncryptedPlace, rng: random.Random, report: Report) -> None:
    """Each edit of the rows of one session, and what is accepted of it. The place is as it was afterwards."""
    bare, model = seen_with(place, None).open_store(), plain.open_store()
    try:
        ours, others = await bare_rows(bare, "s"), await bare_rows(bare, "t")
        for name, rows in row_edits(ours, others, await bare_rows(model, "s"), rng):
            await bare.capabilities.repair.set_aside("s", linked(rows))
            await judge(place, report, f"{name} among the rows", "s")
        await bare.capabilities.repair.set_aside("s", ours)
    finally:
        await bare.aclose()
        await model.aclose()


async def walk_calls(place: EncryptedPlace, report: Report) -> None:
    """Each edit of posted calls, and which of them would be made."""
    bare = seen_with(place, None).open_store()
    try:
        box = call_queue_of(bare)
        if box is None:
            return
        kept = {call.session_id: call for call in await box.calls() if call.token == "t2"}
        forged: Mapping[str, Json] = {"prompt": FORGED, "options": {}}
        for name, call in (
            ("plain text", forged),
            ("another session's", kept["t"].call),
            ("another token's", kept["s"].call),
            ("nothing", NO_CALL),
            ("no ciphertext", {"sealed": FORGED}),
            ("a wrong kind of ciphertext", {"sealed": 5}),
        ):
            await box.put(replace(kept["s"], token=f"x {name}", call=call))
            await judge(place, report, f"{name} among the calls", "s")  # Of each session, one is taken at a time.
        store = place.open_store()
        try:
            sealed = call_queue_of(store)
            assert sealed is not None
            refused = [call for call in await sealed.calls("s") if call.parked and call.token.startswith("x ")]
            report.check(len(refused) >= 4, f"only {len(refused)} of the writer's calls were set aside")
            for call in refused:  # As `Sessions.retry` does: what was refused is not sealed by that.
                await sealed.put(call)
        finally:
            await store.aclose()
        await judge(place, report, "calls that are put again", "s")
    finally:
        await bare.aclose()


async def judge(place: EncryptedPlace, report: Report, what: str, session_ids: Sequence[str] = SESSIONS) -> None:
    """Have these sessions read, and note what should not have been accepted."""
    for session_id in session_ids:
        seen = await look(place, session_id)
        report.faults += [f"{what}: {fault}" for fault in faults_in(seen, session_id)]
        report.acknowledged += 1
        report.found += 1
        report.counts["readings refused"] += len(seen.errors)
        report.counts["readings answered"] += len(seen.texts)


# The file of a database: every column of every table, also those that nobody has thought of.


def tables_of(path: Path) -> dict[str, list[str]]:
    """The columns of each table."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: [column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")]
            for name in names
            if not name.startswith("sqlite_")
        }


def cell_edits(path: Path, older: Path, plain: Path, rng: random.Random) -> Iterator[tuple[str, str, object, object]]:
    """For each column of each table: its names, a value there, and what the writer puts in its place."""
    with closing(sqlite3.connect(path)) as here:
        for name, path_of in (("older", older), ("plain", plain)):
            here.execute(f"ATTACH ? AS {name}", (str(path_of),))
        for table, columns in tables_of(path).items():
            lines = here.execute(f"SELECT * FROM main.{table}").fetchall()
            for number, column in enumerate(columns):
                known = [line[number] for line in lines]
                if not known:
                    continue
                old = rng.choice(known)
                values: list[object] = [rng.choice(known), None, -1, 2**62, 9e307, "", FORGED, b"\x02" * 60]
                for other in ("older", "plain"):
                    found = here.execute(f"SELECT count(*) FROM {other}.sqlite_schema WHERE name = ?", (table,))
                    if found.fetchone() != (0,):
                        values += [row[0] for row in here.execute(f"SELECT {column} FROM {other}.{table}").fetchmany(3)]
                new = rng.choice(values)
                yield table, column, old, new


async def fill_files(folder: Path) -> None:
    """An encrypted database, the same one as it was before, and one with the writer's words in plain text."""
    place = place_with(LocalKeys(folder / "keys", master_key=MASTER), "sqlite", folder)
    for session_id in SESSIONS:
        await fill(place, session_id, word_of(session_id))
    (folder / "older.db").write_bytes(settled_bytes(folder / "sessions/sessions.db"))
    await fill(place, "s", word_of("s"))
    await fill(place_with(None, "sqlite", folder / "forged"), "s", FORGED)
    (folder / "plain.db").write_bytes(settled_bytes(folder / "forged/sessions/sessions.db"))


async def walk_file(folder: Path, rng: random.Random, report: Report, share: float = 1.0) -> None:
    """Every cell of a copy of the database in turn. `share`: of the columns."""
    place = place_with(LocalKeys(folder / "keys", master_key=MASTER), "sqlite", folder)
    path, sound = folder / "sessions/sessions.db", folder / "sound.db"
    sound.write_bytes(settled_bytes(path))
    for table, column, old, new in cell_edits(sound, folder / "older.db", folder / "plain.db", rng):
        if rng.random() > share:
            continue
        for each in path.parent.iterdir():
            if each.is_file():
                each.unlink()
        path.write_bytes(sound.read_bytes())
        with closing(sqlite3.connect(path)) as connection:
            try:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS ?", (new, old))
            except sqlite3.Error:
                continue
            connection.commit()
        await judge(place, report, f"{table}.{column} = {str(new)[:60]!r}")


def settled_bytes(path: Path) -> bytes:
    """The whole database, which nobody has open."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


# The objects of a bucket or a folder.


async def walk_objects(
    place: JournalSessions, plain: JournalSessions, older: Mapping[str, bytes], rng: random.Random, report: Report
) -> None:
    """Each object in turn is what another one is, was, or would be in plain text."""
    objects, model = place.storage.open_objects("writer"), plain.storage.open_objects("writer")
    try:
        sound, forged = await bodies_of(objects), await bodies_of(model)
        for name, body in sound.items():
            kind = name.rsplit("/", 1)[0].replace("/t", "/s")
            others = [each for key, each in forged.items() if key.rsplit("/", 1)[0] == kind]
            choices = [
                older.get(name),
                forged.get(name),
                rng.choice(others or [b""]),
                *rng.sample([*sound.values()], 2),
            ]
            for each in {each for each in choices if each is not None and each != body}:
                await objects.put(name, each, Overwrite())
                await judge(place, report, f"another object at {name}")
            await objects.put(name, body, Overwrite())
    finally:
        await objects.aclose()
        await model.aclose()


async def bodies_of(objects: ObjectStore) -> dict[str, bytes]:
    return {info.key: (await objects.get(info.key)).body for info in await objects.list("")}


# Keys.


async def walk_keys(keys: LocalKeys, rng: random.Random, edits: int, report: Report) -> None:
    """Random edits of the documents of two sessions: the same keys come out, older ones of the session, or an error."""
    objects, provider = keys.storage.open_objects("writer"), keys.open_keys()
    try:
        known = {session_id: [await provider.create(session_id, {"a": 1})] for session_id in ("k1", "k2")}
        names = [info.key for info in await objects.list("keys/")]
        versions = [(await objects.get(name)).body for name in names]
        for session_id, rings in known.items():
            rings.append(await provider.rotate(session_id))
        sound = {name: (await objects.get(name)).body for name in names}
        versions += sound.values()
        for _ in range(edits):
            name = rng.choice(names)
            await objects.put(name, edited(sound[name], versions, rng), Overwrite())
            for session_id, rings in known.items():
                opened = LocalKeys(keys.storage, master_key=MASTER).open_keys()
                report.acknowledged += 1
                report.found += 1
                try:
                    ring = await opened.keys_of(session_id)
                    report.check(ring is None or ring in rings, f"other keys for {session_id}: {ring}")
                    report.counts["keys that came out"] += 1
                except RepertoryError:
                    report.counts["keys refused"] += 1
            await objects.put(name, sound[name], Overwrite())
    finally:
        await provider.aclose()
        await objects.aclose()


def edited(body: bytes, versions: Sequence[bytes], rng: random.Random) -> bytes:
    """One random edit of a document."""
    match rng.randrange(5):
        case 0:
            return rng.choice(versions)
        case 1:
            place = rng.randrange(len(body))
            return body[:place] + rng.randbytes(rng.randrange(3)) + body[place + rng.randrange(3) :]
        case 2:
            other = rng.choice(versions)
            return body[: rng.randrange(len(body))] + other[rng.randrange(len(other)) :]
        case 3:
            return body.replace(rng.choice((b'"wrap":"master', b'"sealed"', b'"session"', b'"key"')), b'"wrap":"none')
        case _:
            return body[: rng.randrange(len(body))]
