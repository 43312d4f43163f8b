"""Random damage to stored sessions: every answer is what it was before, or a typed error that names the place.

    python -m tests.simulation.random_damage --seeds 1000

A world is some sessions of mixed content on one store (windows, redactions, rewinds, forks, several agents, runs, and
beside those in SQLite what is remembered), as it lies there after a clean close or after a kill. Each seed takes a
world, damages it in one to three random places, and asks for everything that can be asked. Then it has it repaired.
What must hold:

- every reading answers as before, says in its answer what is damaged or lost, or raises an error of `repertory.errors`
  that names a path, a session or a key; nothing else is raised, and nothing hangs;
- a doctor that finds nothing is right: then every answer is as before;
- what could be read whole before a repair is there after it, and of the rest a beginning; another doctor finds nothing
  wrong then, and each session takes another turn.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from repertory import (
    Agent,
    FileStorage,
    Graph,
    JournalSessionManager,
    JournalSessions,
    ScriptedModel,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    SQLiteSessions,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import Batch, Overwrite, Position, SessionStore, give_up
from repertory.backends.sessions.journal import maintenance as object_merging
from repertory.backends.sessions.journal import maintenance as object_tending
from repertory.backends.sessions.journal import ownership as object_ownership
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.sqlite import reading as sqlite_reading
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.errors import Gone, Invalid, RepertoryError
from repertory.testing.session_contract import grow
from tests.core.journal.journal_driver import COMMANDS, Driver
from tests.operations.operated_places import Memory

KINDS = ("sqlite", "sqlite killed", "journal in files", "journal in memory")
SMALL = (
    (object_merging, "SEGMENTS_MERGED", 4),
    (object_merging, "_UNMERGED_BYTES", 2000),
    (object_ownership, "SEGMENTS_MIN", 2),
    (object_ownership, "SEGMENTS_MAX", 6),
    (object_ownership, "INLINE_BYTES_MAX", 1500),
    (sqlite_reading, "SETTLE_AFTER", 60),
)
"""Heads, windows, chunks and settled ends are made after a few commits, so that all of them are met."""
HANG_S = 120.0


class Damaged(AssertionError):
    """What must hold does not."""


@contextmanager
def small_numbers() -> Iterator[None]:
    before = [getattr(module, name) for module, name, _ in SMALL]
    for module, name, value in SMALL:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(SMALL, before, strict=True):
            setattr(module, name, value)


# Worlds.


class Shelf(Memory):
    """Objects in memory whose owners were last heard of an hour ago."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0
        self._shelf = ObjectShelf(lambda: time.time() + self.passed_s)

    async def fill(self, bodies: Mapping[str, bytes]) -> None:
        store = self.open_objects("damage")
        for key, body in bodies.items():
            await store.put(key, body, Overwrite())
        await store.aclose()
        self.passed_s += 3600.0


@dataclass(slots=True)
class World:
    """Stored sessions, as bytes under names."""

    kind: str
    bodies: dict[str, bytes]
    agents: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    answers: dict[str, object] = field(default_factory=dict[str, object])
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict[tuple[str, str], list[Row]])

    @property
    def journals(self) -> list[tuple[str, str]]:
        """Session and agent of each."""
        return [(session_id, agent_id) for session_id, agents in self.agents.items() for agent_id in agents]

    async def laid_out(self, folder: Path, bodies: Mapping[str, bytes] | None = None) -> SessionLocation:
        """A place in which it lies, or what is left of it."""
        place = _place(self.kind, folder)
        bodies = self.bodies if bodies is None else bodies
        if isinstance(place, JournalSessions) and isinstance(place.storage, Shelf):
            await place.storage.fill(bodies)
        else:
            _write(folder, bodies)
        return place


def _write(folder: Path, bodies: Mapping[str, bytes]) -> None:
    (folder / "sessions.db-owners").mkdir(parents=True)
    for name, body in bodies.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def _place(kind: str, folder: Path) -> SQLiteSessions | JournalSessions:
    if kind.startswith("sqlite"):
        return SQLiteSessions(folder / "sessions.db", remember=True)
    return JournalSessions(Shelf() if kind == "journal in memory" else FileStorage(folder / "journals"))


async def make_world(kind: str, seed: int) -> World:
    """The world of that kind with that number. Errors: `Damaged` when it cannot be read before any damage."""
    rng = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory(prefix="damage") as name, small_numbers():
        folder = Path(name)
        place = _place(kind, folder)
        await _fill(place, rng)
        bodies = await _last_words(place, folder, rng) if kind == "sqlite killed" else _files(folder)
        if isinstance(place, JournalSessions) and isinstance(place.storage, Shelf):
            bodies = {key: kept.body for key, kept in place.storage.shelf.objects.items()}
        world = World(kind, bodies)
        with tempfile.TemporaryDirectory(prefix="damage") as other:
            place = await world.laid_out(Path(other))
            async with Sessions(place) as sessions:
                for info in await sessions.list():
                    world.agents[info.session_id] = sorted(info.agents)
            answers = dict(await ask(world, place))
            # A world may begin with a position whose contents were erased: nobody is asked about that one.
            world.answers = {about: answer for about, answer in answers.items() if not isinstance(answer, Invalid)}
            for about, answer in world.answers.items():
                if isinstance(answer, BaseException):
                    raise Damaged(f"before any damage, {about}: {answer!r}") from answer
            async with _store(place) as store:
                for where in world.journals:
                    world.rows[where] = list(await store.load(*where, whole=True))
        return world


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def _fill(place: SQLiteSessions | JournalSessions, rng: random.Random) -> None:
    """Several sessions, one commit after the other, in turns."""
    store = place.open_store()
    commands = [name for name in COMMANDS if name != "node"]
    drivers = {f"s{number}": _salted(rng) for number in range(4)}
    for driver in drivers.values():
        driver.run([("prompt", 1), *((rng.choice(commands), rng.randrange(1000)) for _ in range(rng.randint(5, 40)))])
    drivers["long"] = long = _salted(rng)
    for number in range(30):
        text = f"text {number} {'x' * rng.choice((10, 900, 5000))}"
        long.say({"role": "assistant" if number % 2 else "user", "content": [{"text": text}]}, new_turn=not number % 2)
    long.plan_drop(8)
    leases = {session_id: (await store.acquire(session_id)).lease for session_id in (*drivers, "pair")}
    left = {session_id: list(driver.rows) for session_id, driver in drivers.items()}
    left["pair"] = [*grow(3, "first"), *grow(5, "second")]
    while any(left.values()):
        session_id = rng.choice([name for name, rows in left.items() if rows])
        rows, left[session_id] = left[session_id][:3], left[session_id][3:]
        (outcome,) = await store.append([Batch(lease=leases[session_id], rows=rows)])
        assert isinstance(outcome, Position), outcome
        if isinstance(store, ObjectSessionStore):  # The same each time, where `tend` would do it when it has time.
            await object_tending._tidy(store._owned[session_id])
            await object_tending.merge(store._owned[session_id])
    await store.aclose()
    async with Sessions(place) as sessions:
        await sessions.fork("long", "fork", at=12)
        await sessions.mark("s1", "named")
        await sessions.redact("long", 3, "[gone]")
        await sessions.rewind("pair", 2, agent="second")
    nodes = {name: Agent(ScriptedModel([f"{name} is done"], loop=True), callback_handler=None) for name in "ab"}
    manager = (
        SQLiteSessionManager("graph", path=place.path, remember=True)
        if isinstance(place, SQLiteSessions)
        else JournalSessionManager("graph", place.storage)
    )
    await Graph(nodes, session_manager=manager).invoke_async("Do it")


def _salted(rng: random.Random) -> Driver:
    """One whose rows are nobody else's, as those of real sessions are."""
    driver = Driver()
    driver.appender = Appender("agent", driver.fold, None, rng.randbytes)
    return driver


async def _last_words(place: SessionLocation, folder: Path, rng: random.Random) -> dict[str, bytes]:
    """The files as they lie when an owner is killed that has said something more."""
    store = place.open_store()
    for session_id in rng.sample(["s0", "s1", "s2", "long", "pair"], 3):
        lease, _ = await store.acquire(session_id)
        (agent_id, *_) = sorted((await store.sessions(session_id))[0].agents)
        for number in range(rng.randint(1, 4)):
            rows = _another_turn(agent_id, await store.load(session_id, agent_id), f"word {number}")
            await store.append([Batch(lease=lease, rows=rows)])
    bodies = {name: body for name, body in _files(folder).items() if not name.endswith("-shm")}
    await store.aclose()
    return bodies


# Questions.


async def ask(world: World, place: SessionLocation) -> list[tuple[str, object]]:
    """What everything that reads says, or the error that it raises."""
    said: list[tuple[str, object]] = []

    async def note(about: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            said.append((about, await call()))
        except Exception as error:  # noqa: BLE001 - judged by the caller
            said.append((about, error))

    async with Sessions(place) as sessions:
        await note("list", lambda: _listed(sessions))
        await note("search", lambda: _searched(sessions))
        for session_id, agents in world.agents.items():
            for agent_id in agents:
                where = f"{session_id}/{agent_id}"
                await note(f"show {where}", lambda s=session_id, a=agent_id: _shown(sessions, s, a))
                await note(f"history {where}", lambda s=session_id, a=agent_id: sessions.history(s, agent=a))
                await note(f"marks {where}", lambda s=session_id, a=agent_id: sessions.marks(s, agent=a))
            await note(f"export {session_id}", lambda s=session_id: _exported(sessions, s))
        await note("diff fork", lambda: sessions.diff("long", "fork"))
        await note("diff s0", lambda: sessions.diff("s0", "s0", at=2))
    if isinstance(place, SQLiteSessions):
        await note("memory", lambda: _remembered(place.path))
    async with _store(place) as store:
        for session_id, agent_id in world.journals:
            await note(f"open {session_id}/{agent_id}", lambda s=session_id, a=agent_id: _opened(store, s, a))
    return said


@asynccontextmanager
async def _store(place: SessionLocation) -> AsyncGenerator[SessionStore]:
    store = place.open_store()
    try:
        yield store
    finally:
        await store.aclose()


async def _opened(store: SessionStore, session_id: str, agent_id: str) -> object:
    """What an agent opens with."""
    lease, _ = await store.acquire(session_id)
    restored = restore(await store.load(session_id, agent_id), session_id=session_id)
    await give_up(store, lease)
    return restored.fold.image(), restored.link, restored.fold.shown.messages()


async def _shown(sessions: Sessions, session_id: str, agent_id: str) -> object:
    return (await sessions.show(session_id, agent=agent_id)).agents[agent_id]


async def _listed(sessions: Sessions) -> object:
    found = await sessions.list()
    return {info.session_id: (dict(info.agents), info.created_at, info.updated_at, info.damaged) for info in found}


async def _searched(sessions: Sessions) -> object:
    found = await sessions.search("1", hits_max=10_000)
    return sorted(found.hits, key=repr), dict(found.unreadable)


async def _exported(sessions: Sessions, session_id: str) -> object:
    lines: list[bytes] = []

    async def write(piece: bytes) -> None:
        lines.append(piece)

    await sessions.write_export(session_id, write)
    return b"".join(lines).split(b"\n")[1:-2]


async def _remembered(path: Path) -> object:
    store = SQLiteMemoryStore(path)
    try:
        found = await store.search("text 4 word")
        return [found, (await store.entries(limit=1000)).entries]
    finally:
        await store.aclose()


def judge(world: World, said: Sequence[tuple[str, object]]) -> Counter[str]:
    """How the answers compare with those before the damage. Errors: `Damaged`."""
    counts: Counter[str] = Counter()
    for about, answer in said:
        if about not in world.answers:
            continue
        before = world.answers[about]
        if about == "memory" and (isinstance(answer, RepertoryError) or not isinstance(answer, BaseException)):
            counts["remembered"] += 1  # Nothing proves what is remembered; but the error must be one of ours.
        elif isinstance(answer, BaseException):
            if not isinstance(answer, RepertoryError):
                raise Damaged(f"{about}: {answer!r}") from answer
            if not {"path", "session", "key", "place"} & answer.fields.keys():
                raise Damaged(f"{about}: the error names no place: {answer!r}") from answer
            if isinstance(answer, Gone):
                raise Damaged(f"{about}: it is gone: {answer!r}") from answer
            counts["refused"] += 1
        elif answer == before:
            counts["same"] += 1
        elif _tells_of_damage(about, before, answer):
            counts["told"] += 1
        else:
            raise Damaged(f"{about}: {_difference(before, answer)}")
    return counts


def _tells_of_damage(about: str, before: Any, answer: Any) -> bool:
    """Whether an answer is what it was but for what it says is damaged or lost."""
    if about == "list":
        damaged = {name for name, (*_, sick) in answer.items() if sick}
        unknown = damaged - before.keys()
        missing = before.keys() - answer.keys()
        same = all(answer[name] == before[name] for name in answer.keys() - damaged if name in before)
        return bool(damaged) and same and len(missing) <= len(unknown) and answer.keys() - damaged <= before.keys()
    if about == "search":
        sick = answer[1].keys()
        return bool(sick) and [hit for hit in answer[0] if hit.session_id not in sick] == [
            hit for hit in before[0] if hit.session_id not in sick
        ]
    if about.startswith(("history", "show")):
        return before.lost_source is None and answer.lost_source is not None
    if about.startswith("marks"):  # Each is proved; that none is missing is what a doctor looks for.
        return all(mark in before for mark in answer)
    return False


def _difference(before: object, answer: object) -> str:
    first, second = repr(before), repr(answer)
    place = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return f"...{first[max(0, place - 80) : place + 80]}... became ...{second[max(0, place - 80) : place + 80]}..."


# Damage.


def damage(world: World, rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """What is left of the bodies, and what was done to them."""
    bodies = dict(world.bodies)
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        names = sorted(
            name
            for name in bodies
            if "-owners/" not in name and ".repertory" not in name and not name.endswith("/owner")
        )
        if not names:
            break
        name, other = rng.choice(names), rng.choice(names)
        if world.kind.startswith("sqlite") and rng.random() < 0.35:
            said = _edit(bodies, rng)
        else:
            body = bodies[name]
            how = rng.choice(HOWS)
            said = f"{how.__name__[1:]} {name}"
            if how is _swapped:
                bodies[name], bodies[other] = bodies[other], body
                said += f" {other}"
            elif how is _doubled:
                bodies[name] = bodies[other]
                said += f" {other}"
            else:
                left = how(body, rng)
                if left is None:
                    del bodies[name]
                else:
                    bodies[name] = left
        done.append(said)
    return bodies, done


def _flipped(body: bytes, rng: random.Random) -> bytes:
    if not body:
        return body
    place = rng.randrange(len(body))
    return body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]


def _scribbled(body: bytes, rng: random.Random) -> bytes:
    if not body:
        return body
    place, size = rng.randrange(len(body)), rng.choice((1, 4, 30, 400))
    return (body[:place] + rng.randbytes(size) + body[place + size :])[: max(len(body), place + size)]


def _zeroed(body: bytes, rng: random.Random) -> bytes:
    if not body:
        return body
    size = rng.choice((8, 100, 512, 4096))
    place = rng.randrange(len(body)) // size * size
    return body[:place] + bytes(min(size, len(body) - place)) + body[place + size :]


def _cut(body: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(body) + 1)
    return body[: place // 4096 * 4096 if rng.random() < 0.5 else place]


def _deleted(body: bytes, rng: random.Random) -> None:
    del body, rng


def _page_copied(body: bytes, rng: random.Random) -> bytes:
    """One block in the place of another one."""
    blocks = len(body) // 4096
    if blocks < 2:
        return body
    source, target = rng.randrange(blocks) * 4096, rng.randrange(blocks) * 4096
    return body[:target] + body[source : source + 4096] + body[target + 4096 :]


def _swapped(body: bytes, rng: random.Random) -> None:
    del body, rng


def _doubled(body: bytes, rng: random.Random) -> None:
    del body, rng


HOWS: Sequence[Callable[[bytes, random.Random], bytes | None]] = (
    _flipped, _flipped, _flipped, _scribbled, _zeroed, _cut, _deleted, _page_copied, _swapped, _doubled,
)  # fmt: skip


def _edit(bodies: dict[str, bytes], rng: random.Random) -> str:
    """Change, double or remove a line of a table, as somebody with an editor may, or a bug."""
    with tempfile.TemporaryDirectory(prefix="damage") as folder:
        for name, body in bodies.items():
            if "owners" not in name:
                Path(folder, name).write_bytes(body)
        said = "edit: nothing"
        with closing(sqlite3.connect(Path(folder, "sessions.db"), isolation_level=None)) as connection:
            try:
                said = _edited(connection, rng)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                said = f"edit: {error}"
        for name in [name for name in bodies if "owners" not in name]:
            path = Path(folder, name)
            del bodies[name]
            if path.exists():
                bodies[name] = path.read_bytes()
    return said


def _edited(connection: sqlite3.Connection, rng: random.Random) -> str:
    tables = ["rows"] * 6 + ["journals", "journals", "sessions", "settled", "recent", "memory_entries", "memory_scopes"]
    table = rng.choice(tables)
    columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    lines = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    if not lines:
        return "edit: no line"
    line = rng.choice(lines)
    where = " AND ".join(f"{column} IS ?" for column in columns)
    how = rng.choice(("change", "change", "change", "remove", "double"))
    how = "change" if (table, how) == ("recent", "double") else how  # a lie about what was committed, not damage
    if how == "remove":
        connection.execute(f"DELETE FROM {table} WHERE {where}", line)
        return f"remove a line of {table}"
    if how == "double":
        values = [*line[1:]] if columns[0] in ("position", "id") else [*line]
        names = columns[1:] if columns[0] in ("position", "id") else columns
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)
        return f"double a line of {table}"
    column = rng.choice([name for name in columns if name != "created_at"])  # a date that only a first message proves
    others = [each[columns.index(column)] for each in lines]
    value = rng.choice(
        (rng.choice(others), "text", b"\x00\xff", 2.5, -1, 0, 2**63 - 1, rng.randrange(200), "", b"", "caf\u00e9/../x")
    )
    if (table, column) == ("journals", "session") and value in others:
        value = "nobody's"  # A journal that is given to another session by hand is damage that nobody can tell.
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *line))
    return f"set {table}.{column} to {value!r:.20}"


# Runs.


async def run_seed(world: World, seed: int) -> tuple[Counter[str], list[str]]:
    """Damage the world as the seed says, and look. Errors: `Damaged` with the seed."""
    rng = random.Random(f"{world.kind} {seed}")
    bodies, done = damage(world, rng)
    folder = Path(tempfile.mkdtemp(prefix="damage"))
    try:
        with small_numbers():
            place = await world.laid_out(folder, bodies)
            counts = judge(world, await ask(world, place))
            place = await _again(world, place, folder, bodies)
            await _mended(world, place, counts)
        return counts, done
    except Exception as error:
        raise Damaged(f"seed {seed} of {world.kind}, {done}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _again(world: World, place: SessionLocation, folder: Path, bodies: Mapping[str, bytes]) -> SessionLocation:
    """The same damage, where nobody has been: those who open a session write."""
    if world.kind == "journal in memory":
        return await world.laid_out(folder, bodies)
    shutil.rmtree(folder)
    return await world.laid_out(folder, bodies)


async def _mended(world: World, place: SessionLocation, counts: Counter[str]) -> None:
    async with _store(place) as store:
        whole = {where: await _whole(store, *where) for where in world.journals}
    async with Sessions(place) as sessions:
        try:
            found = await sessions.doctor()
            report = await sessions.doctor(repair=True)
        except RepertoryError:
            counts["beyond repair"] += 1
            return
        if found.ok and (counts["refused"] or counts["told"]):
            raise Damaged(f"a doctor found nothing: {found}")
        if not report.ok:
            counts["not repaired"] += 1
            return
        again = await sessions.doctor()
    if not again.ok:
        raise Damaged(f"after a repair: {again}")
    counts["repaired"] += not found.ok
    async with _store(place) as store:
        for (session_id, agent_id), before in world.rows.items():
            after = await _whole(store, session_id, agent_id)
            if after is None:
                raise Damaged(f"after a repair {session_id}/{agent_id} cannot be read")
            if whole[session_id, agent_id] and not _follows(before, after, len(before)):
                raise Damaged(f"a repair made {session_id}/{agent_id} worse: {len(before)} rows, then {len(after)}")
            if not _follows(before, after, min(len(before), max(0, len(after) - 1))):
                raise Damaged(f"after a repair {session_id}/{agent_id} is no beginning of what it was")
            if after:
                await _goes_on(store, session_id, agent_id)


def _follows(before: Sequence[Row], after: Sequence[Row], count: int) -> bool:
    return [row.link for row in after[:count]] == [row.link for row in before[:count]]


async def _whole(store: SessionStore, session_id: str, agent_id: str) -> list[Row] | None:
    """Every row, proved; None when that is refused."""
    try:
        rows = list(await store.load(session_id, agent_id, whole=True))
        restore(rows)
    except RepertoryError:
        return None
    return rows


async def _goes_on(store: SessionStore, session_id: str, agent_id: str) -> None:
    lease, _ = await store.acquire(session_id)
    rows = _another_turn(agent_id, await store.load(session_id, agent_id), "and now?")
    (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
    if not isinstance(outcome, Position):
        raise Damaged(f"another turn of {session_id}/{agent_id}: {outcome!r}")
    await give_up(store, lease)
    if (await store.load(session_id, agent_id))[-1] != rows[-1]:
        raise Damaged(f"another turn of {session_id}/{agent_id} is not there")


def _another_turn(agent_id: str, rows: Sequence[Row], text: str) -> list[Row]:
    restored = restore(rows)
    appender = Appender(agent_id, restored.fold, restored.link, lambda count: bytes(range(count)))
    return list(appender.append_all([StateChanged(at=1_800_000_000.0, set={"said": text})]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--keep-going", action="store_true", help="say what fails, and go on")
    given = parser.parse_args()
    seeds = range(given.start, given.start + given.seeds)
    return anyio.run(_main, given.kind or KINDS, given.worlds, seeds, given.keep_going)


async def _main(kinds: Sequence[str], worlds: int, seeds: Sequence[int], keep_going: bool) -> int:
    failed = 0
    for kind in kinds:
        begun = time.monotonic()
        made = [await make_world(kind, number) for number in range(worlds)]
        total: Counter[str] = Counter()
        for seed in seeds:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            try:
                counts, _ = await run_seed(made[seed % worlds], seed)
            except Damaged as error:
                failed += 1
                print(f"FAILED {error}", flush=True)
                if not keep_going:
                    raise
            else:
                total += counts
        said = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
        print(f"{kind}: seeds {seeds[0]} to {seeds[-1]} in {time.monotonic() - begun:.0f} s; {said}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
