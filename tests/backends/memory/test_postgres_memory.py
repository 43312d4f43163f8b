"""The memory in PostgreSQL: its tables and their versions, connections that break, many writers, and what forgetting
leaves in the files. What it keeps and finds is in `test_ranked_memory.py`.
"""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

from repertory import PostgresMemoryStore
from repertory.backends.memory.postgres import schema as tables
from repertory.backends.postgres.tables import VERSION
from repertory.core.memory.options import MemoryEntry
from repertory.core.messages import Message
from repertory.errors import Invalid, NotFound, RepertoryError, StoreFailed, StoreUnavailable
from repertory.testing.cuts import LostWhen
from repertory.testing.cutting_relay import cutting_relay
from tests.backends.memory.postgres_memories import postgres_memory
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer, postgres_server, programs
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = Path(__file__).parents[2] / "golden" / "postgres-memory-v1.sql"
MOST_MESSAGES = 30
Call = Callable[[PostgresMemoryStore], Awaitable[object]]


@asynccontextmanager
async def closing(*stores: PostgresMemoryStore) -> AsyncGenerator[None]:
    try:
        with anyio.fail_after(50):
            yield
    finally:
        for store in stores:
            await store.aclose()


def said(*texts: str) -> list[Message]:
    return [{"role": "user", "content": [{"text": text}]} for text in texts]


def contents(entries: Sequence[MemoryEntry]) -> list[str]:
    return [entry.content for entry in entries]


async def everything(store: PostgresMemoryStore) -> list[str]:
    return contents((await store.entries(limit=1000)).entries)


class Embedder:
    """The embedder of the dump: texts with one of two words are alike."""

    name = "meanings"
    dimensions = 3

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [[float("heron" in text or "egret" in text), float("tea" in text), 1.0] for text in texts]


# Tables and their versions.


async def test_a_store_reads_and_continues_what_version_1_has_stored(postgres: PostgresServer, tmp_path: Path) -> None:
    """The dump was made by `pg_dump --schema=repertory --no-owner --inserts` when version 1 was new."""
    schema = schema_of(tmp_path)
    dump = GOLDEN.read_text().replace("repertory.", f"{schema}.").replace("SCHEMA repertory;", f"SCHEMA {schema};")
    found = programs()
    assert found is not None
    command = [str(found / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", postgres.url]
    loaded = await anyio.to_thread.run_sync(lambda: subprocess.run(command, input=dump, text=True, capture_output=True))
    assert loaded.returncode == 0, loaded.stderr
    store, other = postgres_memory(tmp_path, embedder=Embedder()), postgres_memory(tmp_path, scope="other")
    async with closing(store, other):
        assert await everything(store) == [
            "Ada: the heron nests by the weir",
            "Since when?",
            "In May; später 日本語\0, café.",
            "Ada watches herons",
            "Ada likes tea",
            "Ada likes coffee",
        ]
        assert await everything(other) == ["heron of the other"]
        assert contents(await store.search("Where do herons nest?"))[0] == "Ada: the heron nests by the weir"
        assert contents(await store.search("CAFÉ 本"))[0].startswith("In May")
        assert contents(await store.search("egret"))[0] == "Ada: the heron nests by the weir"
        assert contents(await store.search("What does Ada like?", as_of=150.0))[0] == "Ada likes tea"
        known: Any = {"session_id": "s", "agent_id": "a", "sequence_numbers": [3], "message_times": [1.0]}
        assert await store.add_messages(said("again"), known) == 0
        assert await store.add_messages(said("gone"), {"session_id": "gone", "sequence_numbers": [1]}) == 0  # type: ignore[arg-type]
        assert await store.forget(session_id="s") == 3
        assert not [content for content in contents(await store.search("weir")) if "weir" in content]
        assert "Ada watches herons" in await everything(store)
        assert await store.add("new") is not None
    assert postgres.sql(f"SELECT version FROM {schema}.memory_meta") == [(VERSION,)]


@pytest.mark.parametrize("version", [VERSION + 1, 0])
async def test_tables_of_another_release_are_left_alone(postgres: PostgresServer, tmp_path: Path, version: int) -> None:
    store = postgres_memory(tmp_path)
    async with closing(store):
        await store.add("one")
    postgres.sql(f"UPDATE {schema_of(tmp_path)}.memory_meta SET version = {version}")
    other = postgres_memory(tmp_path)
    async with closing(other):
        for call in (other.add("two"), other.search("one"), other.forget("1"), other.entries()):
            with pytest.raises(StoreFailed, match="another version"):
                await call
    assert postgres.sql(f"SELECT version FROM {schema_of(tmp_path)}.memory_meta") == [(version,)]


async def test_reading_and_forgetting_make_no_tables(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_memory(tmp_path, embedder=Embedder())
    async with closing(store):
        assert await store.search("anything") == await everything(store) == []
        assert await store.forget("1") == 0
        await store.embed()
    assert postgres.sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(tmp_path)}'") == []


async def test_tables_that_are_gone_are_missed(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_memory(tmp_path)
    async with closing(store):
        await store.add("one")
        postgres.sql(f"DROP SCHEMA {schema_of(tmp_path)} CASCADE")
        with pytest.raises(StoreFailed, match="gone"):
            await store.add("two")


# Connections.


@pytest.mark.parametrize(
    ("wrong", "reason"), [("dbname=nowhere", "no such database"), ("user=nobody", "no such user")], ids=str
)
async def test_what_the_caller_must_change_is_told_from_what_passes(
    postgres: PostgresServer, wrong: str, reason: str
) -> None:
    store = PostgresMemoryStore(f"{postgres.dsn()} {wrong} password=an-unusual-passphrase")
    async with closing(store):
        for call in (store.search("anything"), store.add("one")):
            with pytest.raises(StoreFailed, match=reason) as refused:
                await call
            assert "an-unusual-passphrase" not in f"{refused.value} {refused.value.fields} {store!r}"
    nowhere = PostgresMemoryStore("host=127.0.0.1 port=1 dbname=nowhere")
    async with closing(nowhere):
        with pytest.raises(StoreUnavailable):
            await nowhere.add("one")


@pytest.mark.parametrize("settings", [{"scope": "a/b"}, {"name": ""}, {"schema": "pg_x"}, {"connections": 0}], ids=str)
def test_bad_settings_are_refused(settings: Any) -> None:
    with pytest.raises(Invalid):
        PostgresMemoryStore("dbname=memories", **settings)
    with pytest.raises(Invalid):
        PostgresMemoryStore("no connection string")


def test_without_psycopg_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\nfrom repertory import PostgresMemoryStore\nPostgresMemoryStore('')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "pip install 'repertory[postgres]'" in ran.stderr.splitlines()[-1]


FROM_S: Any = {"session_id": "s", "sequence_numbers": [1, 2], "message_times": [1.0, 2.0]}
LEARNED: Any = {"session_id": "s", "sequence_numbers": [2], "message_times": [2.0], "idempotency_key": "learned"}
METHODS: dict[str, Call] = {
    "search": lambda store: store.search("heron"),
    "entries": lambda store: store.entries(),
    "add": lambda store: store.add("the heron nests", context=LEARNED),
    "add_messages": lambda store: store.add_messages(said("the heron sleeps", "the egret wakes"), FROM_S),
    "supersede": lambda store: store.supersede("old", "the heron is gone", context=LEARNED),
    "forget": lambda store: store.forget("old"),
    "forget a session": lambda store: store.forget(session_id="before"),
    "embed": lambda store: store.embed(),
}


async def seen(observer: PostgresMemoryStore) -> list[tuple[str, object]]:
    """Everything that is stored, and what it has become."""
    page = await observer.entries(limit=1000)
    return [(entry.content, (entry.metadata or {}).get("superseded_at") is not None) for entry in page.entries]


async def begun(store: PostgresMemoryStore) -> None:
    await store.add("the heron is there", {"id": "old"})
    context: Any = {"session_id": "before", "sequence_numbers": [1]}
    await store.add_messages(said("the heron was heard"), context)
    await store.add("herons can be heard", context=context)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_that_breaks_leaves_nothing_half_done(
    postgres: PostgresServer, tmp_path: Path, method: str, cut: LostWhen
) -> None:
    """And the same call again gives what it would have given, since turns have numbers, and facts keys."""
    call, embedder = METHODS[method], Embedder() if method == "embed" else None
    with anyio.fail_after(55):
        async with cutting_relay(postgres.port) as relay:
            dsn = f"host=127.0.0.1 port={relay.port} user=postgres dbname=postgres"
            states: list[object] = []
            for number in range(MOST_MESSAGES):
                scope = f"scope-{number}"
                observer = postgres_memory(tmp_path, scope=scope)
                store = PostgresMemoryStore(dsn, schema=schema_of(tmp_path), scope=scope, embedder=embedder)
                await begun(observer)
                before = await seen(observer)
                await store.search("")  # Now it is connected.
                relay.plan(cut, number)  # The first time nothing is cut.
                failed = None
                try:
                    await call(store)
                except StoreUnavailable as error:
                    failed = error
                cut_off, relay.left = not relay.planned, 0
                found = await seen(observer)
                if number == 0:
                    states = [before, found]
                assert failed is not None or found == states[1]
                assert failed is None or (cut_off and found in states and {"host", "port"} <= failed.fields.keys())
                with suppress(NotFound):
                    await call(store)
                assert await seen(observer) == states[1]
                store._tables._pending_work = False  # type: ignore[attr-defined]  # Writing parts anew takes long.
                await store.aclose()
                await observer.aclose()
                if number and not cut_off:
                    assert number > 2
                    return
    raise AssertionError("the method never came to its end")


async def test_a_database_that_does_not_answer_is_unavailable_after_a_while(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with cutting_relay(postgres.port) as relay:
        store = PostgresMemoryStore(
            f"host=127.0.0.1 port={relay.port} user=postgres dbname=postgres", schema=schema_of(tmp_path)
        )
        _hurry(store)
        async with closing(store):
            await store.add("one")
            relay.hold()
            for call in (store.add("two"), store.search("one")):
                with pytest.raises(StoreUnavailable):
                    await call
            with anyio.move_on_after(0.1) as scope:
                await store.search("one")
            assert scope.cancelled_caught
            relay.let_flow()
            assert contents(await store.search("one")) == ["one"]


def _hurry(store: PostgresMemoryStore) -> None:
    location: Any = store._tables._location  # type: ignore[attr-defined]
    store._tables._location = type(location)(address=location.address, schema=location.schema, timeout_s=0.5)  # type: ignore[attr-defined]


async def test_nothing_outlives_aclose_and_it_opens_again(postgres: PostgresServer, tmp_path: Path) -> None:
    name = f"memory {tmp_path.name}"
    store = PostgresMemoryStore(f"{postgres.dsn()} application_name='{name}'", schema=schema_of(tmp_path))
    connected = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    before = set(threading.enumerate())
    async with closing(store):
        for _ in range(2):
            key = await store.add("heron")
            assert postgres.sql(connected) != [(0,)]
            assert await store.forget(str(key)) == 1
            await store.add("heron")
            await store.aclose()
            await store.aclose()
            new = set(threading.enumerate()) - before
            assert not [thread for thread in new if thread.name.startswith("repertory")]
            while postgres.sql(connected) != [(0,)]:  # noqa: ASYNC110 - the server ends its processes
                await anyio.sleep(0.01)
        assert contents(await store.search("heron")) == ["heron"]


def test_one_store_serves_event_loops_one_after_the_other(postgres: PostgresServer, tmp_path: Path) -> None:
    store = postgres_memory(tmp_path)

    async def used(number: int, backend: str) -> None:
        await store.add(f"heron {number} on {backend}")
        assert len(await store.search("heron")) == number + 1

    for number, backend in enumerate(("asyncio", "trio", "asyncio")):
        anyio.run(used, number, backend, backend=backend)
    anyio.run(store.aclose)


FORKING = """
import os, sys
import anyio
from repertory import PostgresMemoryStore

store = PostgresMemoryStore(sys.argv[1], schema=sys.argv[2])

async def used(text):
    await store.add(text)
    if text == "before":
        child = os.fork()
        if child == 0:
            os._exit(childs())
        assert os.waitpid(child, 0)[1] == 0
    return len((await store.entries()).entries)

def childs():
    import threading
    thread = threading.Thread(target=anyio.run, args=(used, "in the child"))
    thread.start()
    thread.join()
    return 0

anyio.run(used, "before")
print(anyio.run(used, "after"))
"""


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(postgres: PostgresServer, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, postgres.url, schema_of(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "3\n"


# Many writers.


async def test_writers_in_one_scope_lose_nothing_and_a_fact_is_stored_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    stores = [postgres_memory(tmp_path) for _ in range(4)]
    async with closing(*stores):

        async def write(store: PostgresMemoryStore, number: int) -> None:
            for turn in range(10):
                context: Any = {"session_id": "shared", "sequence_numbers": [turn + 1], "agent_id": f"a{number % 2}"}
                await store.add_messages(said(f"heron {turn} of {number % 2}"), context)
                await store.add("Ada watches herons")
                await store.search("heron")

        async with anyio.create_task_group() as tasks:
            for number, store in enumerate(stores):
                tasks.start_soon(write, store, number)
        entries = (await stores[0].entries(limit=1000)).entries
        turns = sorted(entry.content for entry in entries if (entry.metadata or {})["kind"] == "turn")
        assert turns == sorted(f"heron {turn} of {agent}" for turn in range(10) for agent in range(2))
        assert [(entry.metadata or {}).get("seen") for entry in entries if entry.content.startswith("Ada")] == [40]
        assert postgres.sql(f"SELECT entries FROM {schema_of(tmp_path)}.memory_scopes") == [(21,)]


async def test_what_no_text_of_the_database_can_have_is_kept_all_the_same(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    store = postgres_memory(tmp_path)
    async with closing(store):
        texts = ["a \0 heron", "日本語のテキスト\0", "\ud800 egret", "x" * 3_000_000]
        for number, text in enumerate(texts):
            context: Any = {"session_id": f"s\0{number}", "idempotency_key": f"k\0{number}"}
            await store.add_messages(said(text), context)
            await store.add_messages(said(text), context)
        await store.add("a fact", {"id": "m\0", "speaker": "A\0da", "note": "n\0"})
        assert await everything(store) == [*texts[:2], "\ufffd egret", texts[3], "a fact"]
        assert contents(await store.search("テキ", {"max_search_results": 1})) == [texts[1]]  # type: ignore[arg-type]
        assert contents(await store.search("heron \0")) == [texts[0]]
        (fact,) = await store.search("fact")
        assert (fact.metadata or {})["note"] == "n\0"
        assert await store.forget("m\0") == 1


# Forgetting.


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose files are read."""
    with postgres_server(wal_level="minimal", max_wal_senders="0") as server:
        yield server


def held_in(server: PostgresServer, text: bytes) -> list[str]:
    """The files of tables, indexes and what lies beside them that hold this text."""
    server.sql("CHECKPOINT")
    return [path.name for path in (server.data / "base").rglob("*") if path.is_file() and text in path.read_bytes()]


async def test_what_is_forgotten_leaves_the_files_soon(own_server: PostgresServer, tmp_path: Path) -> None:
    """Its text, what stands for its words, and its vector."""
    schema, secret = schema_of(tmp_path), f"Xylograph{tmp_path.name}"
    store = postgres_memory(tmp_path, own_server, embedder=Embedder())
    async with closing(store):
        large = "-".join(secret for _ in range(3000))
        await store.add_messages(said(f"the {secret} of Ada", *(f"turn {n}" for n in range(50)), large))
        key = await store.add(f"the quokka egret of {secret}", context={"session_id": "s", "sequence_numbers": [1]})  # type: ignore[arg-type]
        await store.embed()
        statement = f"SELECT term FROM {schema}.memory_postings_03 WHERE entry = {key}"
        words = [struct.pack("<q", int(str(term))) for (term,) in own_server.sql(statement)]
        vector = struct.pack("<3f", 2**-0.5, 0.0, 2**-0.5)
        for text in (secret.encode(), vector, *words):
            assert held_in(own_server, text)
        only_there = [word for word in words if own_server.sql(_with(schema, word)) == [(1,)]]
        assert len(only_there) == 2
        assert await store.forget(session_id="s") == 1
        for entry in (await store.entries(limit=1000)).entries:
            if secret in entry.content:
                await store.forget(str((entry.metadata or {})["id"]))
        assert not [content for content in contents(await store.search(secret)) if secret in content]
        while own_server.sql(f"SELECT 1 FROM {schema}.memory_erasures"):  # noqa: ASYNC110 - the tables tell
            await anyio.sleep(0.05)
        for text in (secret.encode(), vector, *only_there):
            assert not held_in(own_server, text)
        assert len(await store.search("turn")) == 10


def _with(schema: str, word: bytes) -> str:
    return f"SELECT count(*) FROM {schema}.memory_postings_03 WHERE term = {struct.unpack('<q', word)[0]}"


async def test_what_is_forgotten_waits_for_those_that_may_still_see_it_and_closing_tries_once_more(
    own_server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = f"SECRET-{tmp_path.name}"
    marks = f"SELECT count(*) FROM {schema_of(tmp_path)}.memory_erasures"
    store = postgres_memory(tmp_path, own_server)
    async with closing(store):
        key = await store.add(secret)
        with psycopg.connect(own_server.dsn()) as watching:
            watching.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            watching.execute("SELECT count(*) FROM pg_class")
            assert await store.forget(str(key)) == 1
            await store.aclose()
            assert own_server.sql(marks) != [(0,)]
            assert held_in(own_server, secret.encode())
        with caplog.at_level(logging.WARNING):
            assert await store.search("anything") == []  # Whoever opens it goes on with what was left.
            while own_server.sql(marks) != [(0,)]:  # noqa: ASYNC110 - the tables tell
                await anyio.sleep(0.05)
        assert not held_in(own_server, secret.encode())
        assert not caplog.records


async def test_words_are_forgotten_with_what_had_them(postgres: PostgresServer, tmp_path: Path) -> None:
    """No number of a word is left over, in whatever way entries went."""
    schema = schema_of(tmp_path)
    store = postgres_memory(tmp_path)
    async with closing(store):
        with suppress(RepertoryError):
            await store.add_messages(said("the Heron's nests; später, 日本"), {"session_id": "s"})  # type: ignore[arg-type]
        await store.add("Ada: moved in May 2023", {"speaker": "Ada", "session": "t", "said_at": 1683554160.0})
        await store.add("a fact of May", {"id": "mine"})
        assert await store.forget(session_id="s") + await store.forget(session_id="t") + await store.forget("mine") == 3
        counts = [
            postgres.sql(f"SELECT count(*) FROM {schema}.memory_postings_{number:02}") for number in range(tables.PARTS)
        ]
        assert counts == [[(0,)]] * tables.PARTS
