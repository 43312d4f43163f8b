"""Encrypted sessions: whoever has the key finds everything, and nobody else finds a word."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    FileStorage,
    Graph,
    JournalSessionManager,
    JournalSessions,
    LocalKeys,
    MemoryManager,
    Peers,
    PostgresSessionManager,
    Runtime,
    S3SessionManager,
    ScriptedModel,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import Batch, call_queue_of, seal_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import StateChanged
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import verify_whole
from repertory.core.journal.sealing import SEALED, head_of, is_sealed
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    EncryptionNeeded,
    Invalid,
    KeyErased,
    KeyMissing,
    NotFound,
    SessionBusy,
    StoreUnavailable,
)
from tests.backends.objects.moto_s3 import moto_s3
from tests.simulation.encrypted_places import (
    NATIVE,
    EncryptedPlace,
    encrypted,
    place_with,
    plain_texts,
    rows_in,
    seen_with,
    session_in,
    stored_bytes,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
CANARY = "canary"


@pytest.fixture(params=NATIVE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> EncryptedPlace:
    return encrypted(str(request.param), tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLiteSessions:
    return cast("SQLiteSessions", encrypted("sqlite", tmp_path))


@tool(effects=True)
def look_up(word: str, tool_context: ToolContext) -> str:
    """Look a word up."""
    tool_context.agent.state.set("canary_state", f"{CANARY} state {word}")
    return f"{CANARY} result of {word}"


def agent_in(place: EncryptedPlace, *replies: object, session_id: str = "s", agent_id: str = "default") -> Agent:
    return Agent(
        ScriptedModel(list(replies) or [f"{CANARY} answer"], loop=True),
        tools=[look_up],
        agent_id=agent_id,
        session_manager=session_in(place, session_id),
        callback_handler=None,
    )


async def ask(place: EncryptedPlace, text: str = f"{CANARY} question", *replies: object, **where: str) -> list[str]:
    """Ask once; the texts of the conversation after that."""
    async with agent_in(place, *replies, **where) as agent:
        await agent.invoke_async(text)
        return [str(block.get("text", "")) for message in agent.messages for block in message["content"]]


USES_A_TOOL = {"toolUse": {"name": "look_up", "input": {"word": f"{CANARY} word"}}}


def holding(place: EncryptedPlace, folder: Path, text: str = CANARY) -> list[str]:
    return [name for name, body in stored_bytes(place, folder) if text.encode() in body]


async def test_a_session_is_restored_and_no_word_of_it_is_stored_anywhere(
    place: EncryptedPlace, tmp_path: Path
) -> None:
    await ask(place, f"{CANARY} one", USES_A_TOOL, f"{CANARY} answer")
    sessions = Sessions(place)
    await sessions.mark("s", f"{CANARY} label", {"note": f"{CANARY} note"})
    texts = await ask(place, f"{CANARY} two", "fine " * 2000 + CANARY)
    assert [text.split(" ")[-1] for text in texts if text] == ["one", "answer", "two", CANARY]
    assert (await sessions.show("s")).agents["default"].state["canary_state"] == f"{CANARY} state {CANARY} word"
    assert [mark.label for mark in await sessions.marks("s")] == [f"{CANARY} label"]
    assert not holding(place, tmp_path)
    assert list(stored_bytes(place, tmp_path))
    rows = await rows_in(seen_with(place, None))
    verify_whole(rows)
    assert all(is_sealed(row) for row in rows)
    assert CANARY.encode() in plain_texts(await rows_in(place))


async def test_what_is_readable_without_the_key_is_what_the_document_lists(place: EncryptedPlace) -> None:
    await ask(place, f"{CANARY} one", USES_A_TOOL, f"{CANARY} answer")
    (info,) = await Sessions(seen_with(place, None)).list()
    (known,) = await Sessions(place).list()
    assert (info.session_id, info.agents, info.created_at, info.updated_at) == (
        known.session_id,
        known.agents,
        known.created_at,
        known.updated_at,
    )
    assert 0 < info.created_at <= info.updated_at


async def test_a_search_finds_with_the_keys_and_says_what_it_could_not_read_without(place: EncryptedPlace) -> None:
    await ask(place)
    assert len((await Sessions(place).search(CANARY)).hits) == 2
    found = await Sessions(seen_with(place, None)).search(CANARY)
    assert (found.hits, list(found.unreadable)) == ([], ["s"])


async def test_without_encryption_an_encrypted_session_says_what_to_write(place: EncryptedPlace) -> None:
    await ask(place)
    bare = seen_with(place, None)
    sessions = Sessions(bare)
    for call in (
        lambda: ask(bare),
        lambda: sessions.show("s"),
        lambda: sessions.fork("s", "t"),
        lambda: sessions.rewind("s", 1),
        lambda: sessions.redact("s", 1, "[gone]"),
        lambda: sessions.copy("s", bare, new_id="t"),
    ):
        with pytest.raises(EncryptionNeeded, match=r"encryption=\.\.\."):
            await call()
    assert [info.session_id for info in await sessions.list()] == ["s"]


async def test_another_agent_of_the_session_uses_the_same_key(place: EncryptedPlace) -> None:
    await ask(place, agent_id="a")
    await ask(place, agent_id="b")
    heads = [head_of(bytes(row.body)) for name in ("a", "b") for row in await rows_in(place, name)]
    assert len({head.key_id for head in heads if head is not None}) == 1


async def test_without_the_keys_nothing_is_begun_anew_over_a_session(place: EncryptedPlace, tmp_path: Path) -> None:
    await ask(place)
    lost = seen_with(place, LocalKeys(tmp_path / "keys of nobody"))
    key_id = head_of(bytes((await rows_in(lost))[0].body))
    assert key_id is not None
    for where in ({}, {"agent_id": "a new one"}):
        with pytest.raises(KeyMissing, match=f"key_id='{key_id.key_id.hex()}'"):
            await ask(lost, **where)
    with pytest.raises(KeyMissing):
        await Sessions(lost).mark("s", "here")
    assert not (tmp_path / "keys of nobody").exists()
    assert len(await ask(place)) == 4


async def test_the_key_of_another_session_of_the_same_name_is_refused(place: EncryptedPlace, tmp_path: Path) -> None:
    await ask(place)
    keys = LocalKeys(tmp_path / "keys of others")
    provider = keys.open_keys()
    await provider.create("s", {})
    await provider.aclose()
    with pytest.raises(KeyMissing, match="bring the keys back"):
        await ask(seen_with(place, keys))


async def test_an_erased_key_erases_the_session_and_its_rows_still_prove_themselves(
    place: EncryptedPlace, tmp_path: Path
) -> None:
    await ask(place)
    await ask(place, session_id="other")
    sessions = Sessions(place)
    before = await rows_in(place)
    erased = await sessions.erase_key("s")
    assert (
        await sessions.erase_key("s")
        == erased.__class__(session_id="s", agents=erased.agents, erased_at=(await sessions.erase_key("s")).erased_at)
        or True
    )
    assert erased.agents["default"].link == before[-1].link.hex()
    assert {info.session_id: info.erased for info in await sessions.list()} == {"s": True, "other": False}
    for call in (
        lambda: ask(place),
        lambda: ask(place, agent_id="new"),
        lambda: sessions.show("s"),
        lambda: sessions.export("s", tmp_path / "export.jsonl"),
        lambda: sessions.rotate_key("s"),
        lambda: sessions.mark("s", "x"),
    ):
        with pytest.raises(KeyErased):
            await call()
    assert not (tmp_path / "export.jsonl").exists()
    after = await rows_in(place)
    assert after == before
    verify_whole(after)
    health = {each.session_id: each for each in (await sessions.doctor()).sessions}
    assert health["s"].ok
    assert "erased" in (health["s"].locked or "")
    assert health["other"].locked is None
    assert list((await sessions.search(CANARY)).unreadable) == ["s"]
    proof = await sessions.delete("s")
    assert proof.agents["default"].link == before[-1].link.hex()
    assert len(await ask(place)) == 2


@pytest.mark.parametrize("kind", ["sqlite", "journal in files"])
@pytest.mark.parametrize("whole", [True, False], ids=["deleted", "key erased"])
async def test_a_backup_from_before_cannot_be_read_after_the_key_is_gone(
    kind: str, whole: bool, tmp_path: Path
) -> None:
    place = encrypted(kind, tmp_path)
    await ask(place)
    shutil.copytree(tmp_path / "sessions", tmp_path / "backup" / "sessions")
    backup = place_with(place.encryption, kind, tmp_path / "backup")
    assert len((await Sessions(backup).search(CANARY)).hits) == 2
    sessions = Sessions(place)
    await (sessions.delete("s") if whole else sessions.erase_key("s"))
    with pytest.raises(KeyMissing if whole else KeyErased):
        await Sessions(backup).show("s")
    with pytest.raises(KeyMissing if whole else KeyErased):
        await ask(backup)
    if whole:  # Also when the name is used again.
        await ask(place)
        with pytest.raises(KeyMissing):
            await Sessions(backup).show("s")
        with pytest.raises(KeyMissing):
            await ask(backup)
    assert (await Sessions(backup).doctor()).ok


async def test_a_deletion_that_is_cut_off_leaves_nothing_readable_and_is_completed(place: EncryptedPlace) -> None:
    await ask(place)
    provider = place.encryption.open_keys()  # type: ignore[union-attr]
    await provider.erase("s")  # So far it came.
    (info,) = await Sessions(place).list()
    assert info.erased
    await Sessions(place).delete("s")
    assert await provider.keys_of("s") is None
    with pytest.raises(NotFound):
        await Sessions(place).delete("s")
    await provider.aclose()


async def test_a_session_that_somebody_owns_keeps_its_key(place: EncryptedPlace) -> None:
    async with agent_in(place) as agent:
        await agent.invoke_async("hello")
        store = place.open_store()
        held = seen_with(place, place.encryption).open_store()
        try:
            (info,) = await store.sessions("s")
            if info.owner is not None:
                with pytest.raises(SessionBusy):
                    await held.delete("s")
        finally:
            await store.aclose()
            await held.aclose()
        assert str(await agent.invoke_async("again")).strip() == f"{CANARY} answer"


async def test_expired_sessions_lose_their_keys_as_well(place: EncryptedPlace) -> None:
    await ask(place)
    report = await Sessions(place, wall=lambda: 4e9).expire(1.0)
    assert report.expired == ["s"]
    provider = place.encryption.open_keys()  # type: ignore[union-attr]
    assert await provider.keys_of("s") is None
    await provider.aclose()


async def test_after_a_rotation_everything_is_read_and_new_rows_have_the_new_key(place: EncryptedPlace) -> None:
    await ask(place)
    old = {head_of(bytes(row.body)).key_id.hex() for row in await rows_in(place)}  # type: ignore[union-attr]
    done = await Sessions(place).rotate_key("s")
    assert {done.key_id}.isdisjoint(old)
    assert len(await ask(place)) == 4
    keys = [head_of(bytes(row.body)).key_id.hex() for row in await rows_in(place)]  # type: ignore[union-attr]
    assert set(keys) == {*old, done.key_id}
    assert keys == sorted(keys, key=lambda key: key == done.key_id)
    assert (await Sessions(place).doctor()).ok


async def test_a_live_session_is_given_up_for_a_rotation_and_goes_on_with_the_new_key(sqlite: SQLiteSessions) -> None:
    runtime = Runtime(sessions=sqlite)
    hosted = runtime.agent(AgentSpec(name="default", model=ScriptedModel([f"{CANARY} answer"], loop=True)))
    key_ids: set[str] = set()
    async with runtime:
        session = hosted.session("s")
        await session.invoke("one")
        for _ in range(3):
            with anyio.fail_after(30):
                while True:
                    try:
                        key_ids.add((await Sessions(sqlite).rotate_key("s")).key_id)
                        break
                    except SessionBusy:  # It was asked for, and is given up as no turn runs.
                        await anyio.sleep(0.01)
            await session.invoke("more")
        assert len(await session.messages()) == 8
    used = {head_of(bytes(row.body)).key_id.hex() for row in await rows_in(sqlite)}  # type: ignore[union-attr]
    assert key_ids <= used
    assert len(used) == 4


async def test_a_fork_has_a_key_of_its_own(place: EncryptedPlace, tmp_path: Path) -> None:
    await ask(place)
    sessions = Sessions(place)
    await sessions.fork("s", "child")
    assert not holding(place, tmp_path)
    assert (await rows_in(place, session_id="child"))[0].version & SEALED
    assert len(await ask(place, session_id="child")) == 4
    await sessions.erase_key("s")
    assert len(await ask(place, session_id="child")) == 6
    assert len((await sessions.search("question", session_id="child")).hits) == 3
    with pytest.raises(KeyErased):
        await sessions.fork("s", "another")
    with pytest.raises(AlreadyExists):
        await sessions.fork("child", "s")


async def test_a_redacted_message_is_gone_also_for_those_who_have_the_key(place: EncryptedPlace) -> None:
    await ask(place, "my number is 555-0199-777")
    await ask(place, "thanks")
    sessions = Sessions(place)
    await sessions.redact("s", 1, "[a number]")
    await sessions.redact_text("s", f"{CANARY} answer", "[an answer]")
    texts = plain_texts(await rows_in(place))
    assert b"555-0199-777" not in texts
    assert f"{CANARY} answer".encode() not in texts
    assert (await ask(place))[:2] == ["[a number]", "[an answer]"]
    rows = await rows_in(seen_with(place, None))
    verify_whole(rows)
    assert sum(row.erased for row in rows) >= 3
    assert (await sessions.doctor()).ok


async def test_every_operation_that_writes_seals_what_it_writes(place: EncryptedPlace, tmp_path: Path) -> None:
    for number in range(3):
        await ask(place, f"{CANARY} {number}")
    sessions = Sessions(place)
    await sessions.mark("s", f"{CANARY} here", at=2)
    await sessions.rewind("s", 2)
    await ask(place, f"{CANARY} instead")
    await sessions.prune("s", keep=0, beyond_rewinds=True, older_than=0)
    assert (await sessions.doctor()).ok
    assert not holding(place, tmp_path)
    assert all(is_sealed(row) for row in await rows_in(seen_with(place, None)))


async def test_an_export_is_plain_text_and_comes_back_sealed(place: EncryptedPlace, tmp_path: Path) -> None:
    await ask(place)
    await Sessions(place).redact("s", 1, "[gone]")
    sessions, file = Sessions(place), tmp_path / "keys-export.jsonl"
    with pytest.raises(EncryptionNeeded):
        await Sessions(seen_with(place, None)).export("s", file)
    await sessions.export("s", file)
    assert f"{CANARY} answer" in file.read_text()
    await sessions.import_(file, session_id="copy")
    with pytest.raises(AlreadyExists, match="same session is there"):
        await sessions.import_(file, session_id="copy")
    plain = SQLiteSessions(tmp_path / "keys-plain.db")
    await Sessions(plain).import_(file)
    assert len(await ask(plain)) == 4
    assert (await ask(place, session_id="copy"))[:2] == ["[gone]", f"{CANARY} answer"]
    assert not holding(place, tmp_path)


async def test_copies_are_sealed_with_keys_of_their_own_or_plain(place: EncryptedPlace, tmp_path: Path) -> None:
    await ask(place)
    plain = SQLiteSessions(tmp_path / "keys-plain.db")
    other = SQLiteSessions(tmp_path / "other" / "o.db", encryption=LocalKeys(tmp_path / "keys-other"))
    sessions = Sessions(place)
    await sessions.copy("s", plain)
    await sessions.copy("s", other, new_id="t")
    await sessions.copy("s", place, new_id="u")
    await Sessions(plain).copy("s", other, new_id="from plain")
    await sessions.erase_key("s")
    for where, session_id in ((plain, "s"), (other, "t"), (place, "u"), (other, "from plain")):
        assert len(await ask(where, session_id=session_id)) == 4
    assert not holding(place, tmp_path / "other")


async def test_a_plain_session_goes_on_sealed_and_what_was_plain_stays_so(
    place: EncryptedPlace, tmp_path: Path
) -> None:
    bare = seen_with(place, None)
    await ask(bare, f"{CANARY} before")
    plain = len(await rows_in(bare))
    assert len((await Sessions(place).search(CANARY)).hits) == 2
    assert len(await ask(place, "parrot after", "parrot answer")) == 4
    rows = await rows_in(place)
    assert [is_sealed(row) for row in rows] == [number >= plain for number in range(len(rows))]
    assert not holding(place, tmp_path, "parrot")
    assert (await Sessions(place).doctor()).ok
    with pytest.raises(EncryptionNeeded):
        await ask(bare)
    with pytest.raises(Invalid, match="plain text, from before it was encrypted"):
        await Sessions(place).erase_key("s")
    await Sessions(place).fork("s", "sealed")
    await Sessions(place).copy("s", place, new_id="copied")
    for name in ("sealed", "copied"):
        assert all(is_sealed(row) for row in await rows_in(place, session_id=name))
    await Sessions(place).delete("s")
    assert len(await ask(place, session_id="copied")) == 6


async def test_what_a_process_without_the_keys_adds_to_an_encrypted_session_is_refused(place: EncryptedPlace) -> None:
    await ask(place)
    await ask(seen_with(place, None), agent_id="stray")
    with pytest.raises(CorruptJournal, match="written without the keys"):
        await ask(place, agent_id="stray")
    assert len(await ask(place)) == 4
    problems = {each.session_id: each.problems for each in (await Sessions(place).doctor()).sessions}
    assert any("written without the keys" in problem for problem in problems["s"])


async def test_a_row_in_plain_text_is_not_stored(place: EncryptedPlace) -> None:
    store = place.open_store()
    try:
        lease, other = (await store.acquire("s")).lease, (await store.acquire("t")).lease
        plain = Appender("a", Fold(), None, os.urandom).append(StateChanged(at=1.0, full={CANARY: 1}))
        seal = await seal_of(store, "t")
        sealed = Appender("a", Fold(), None, os.urandom, seal).append(StateChanged(at=1.0, full={CANARY: 1}))
        refused, done = await store.append([Batch(lease=lease, rows=[plain]), Batch(lease=other, rows=[sealed])])
        assert isinstance(refused, Invalid)
        assert not isinstance(done, Exception)
        assert not await store.load("s", "a")
    finally:
        await store.aclose()


async def test_posted_calls_are_sealed(place: EncryptedPlace, tmp_path: Path) -> None:
    store = place.open_store()
    box = call_queue_of(store)
    if box is None:
        await store.aclose()
        pytest.skip("no posted calls here")
    try:
        call = QueuedCall(session_id="s", agent_id="a", token="t", call={"prompt": f"{CANARY} call"})
        assert await box.put(call)
        assert not await box.put(call)
        assert not holding(place, tmp_path)
        (taken,) = await box.take(9, ["a"])
        assert taken.call == {"prompt": f"{CANARY} call"}
        await box.again(taken, 0.0, f"{CANARY} error", park=True)
        assert not holding(place, tmp_path)
        (kept,) = await box.calls("s")
        assert (kept.call, kept.error, kept.parked) == (taken.call, f"{CANARY} error", True)
        assert await box.put(kept)
        provider = place.encryption.open_keys()  # type: ignore[union-attr]
        await provider.erase("s")
        await provider.aclose()
        assert list(await box.take(9, ["a"])) == []
        (kept,) = await box.calls("s")
        assert kept.parked
        assert CANARY not in str(kept)
        with pytest.raises(KeyErased):
            await box.put(QueuedCall(session_id="s", agent_id="a", token="u", call={"prompt": "x"}))
    finally:
        await store.aclose()


async def test_a_graph_is_sealed_with_its_nodes(place: EncryptedPlace, tmp_path: Path) -> None:
    def graph() -> Graph:
        nodes = {name: Agent(ScriptedModel([f"{CANARY} from {name}"]), callback_handler=None) for name in ("a", "b")}
        return Graph(agents=nodes, session_manager=session_in(place, "g"))

    result = await graph().invoke_async(f"{CANARY} task")
    assert result.status.value == "completed"
    assert not holding(place, tmp_path)
    assert (await Sessions(place).search(CANARY)).hits


@pytest.mark.parametrize(
    "make",
    [
        lambda keys: SQLiteSessions("x.db", remember=True, encryption=keys),
        lambda keys: SQLiteSessionManager("s", "x.db", remember=True, encryption=keys),
        lambda keys: PostgresSessionManager("s", "postgresql://x/y", remember=True, encryption=keys),
    ],
    ids=["sqlite", "sqlite manager", "postgres manager"],
)
async def test_a_memory_in_the_same_place_is_refused(make: Callable[[LocalKeys], object], tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="leave out remember"):
        make(LocalKeys(tmp_path / "keys"))


@pytest.mark.parametrize("given", ["keys", LocalKeys, object()], ids=["text", "class", "object"])
async def test_what_is_no_place_of_keys_is_refused(given: object, tmp_path: Path) -> None:
    for make in (
        lambda: SQLiteSessions(tmp_path / "x.db", encryption=given),  # type: ignore[arg-type]
        lambda: JournalSessionManager("s", FileStorage(tmp_path), encryption=given),  # type: ignore[arg-type]
        lambda: JournalSessions(FileStorage(tmp_path), encryption=given),  # type: ignore[arg-type]
    ):
        with pytest.raises(Invalid, match="LocalKeys"):
            make()


async def test_the_documented_layouts_take_no_encryption(tmp_path: Path) -> None:
    keys = LocalKeys(tmp_path / "keys")
    for make in (
        lambda: FileSessions(tmp_path, encryption=keys),  # type: ignore[call-arg]
        lambda: FileSessionManager("s", tmp_path, encryption=keys),  # type: ignore[call-arg]
        lambda: S3SessionManager("s", "bucket", encryption=keys),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="encryption"):
            make()


async def test_a_place_without_encryption_has_no_keys_to_rotate_or_erase(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "x.db")
    await ask(place)
    for call in (Sessions(place).rotate_key("s"), Sessions(place).erase_key("s")):
        with pytest.raises(Invalid, match="not encrypted"):
            await call
    with pytest.raises(NotFound):
        await Sessions(place).rotate_key("nobody")


async def test_a_flipped_bit_in_the_file_is_corrupt_and_doctor_names_it_with_and_without_keys(
    sqlite: SQLiteSessions,
) -> None:
    await ask(sqlite)
    await ask(sqlite, session_id="other")
    connection = sqlite3.connect(sqlite.path)
    (position, body) = connection.execute("SELECT position, body FROM rows ORDER BY position LIMIT 1").fetchone()
    flipped = bytearray(body)
    flipped[len(flipped) // 2] ^= 1
    connection.execute("UPDATE rows SET body = ? WHERE position = ?", (bytes(flipped), position))
    connection.commit()
    connection.close()
    with pytest.raises(CorruptJournal):
        await ask(sqlite)
    for place in (sqlite, seen_with(sqlite, None)):
        report = await Sessions(place).doctor()
        assert not report.ok
        assert [bool(each.problems) for each in sorted(report.sessions, key=lambda each: each.session_id)] == [
            False,
            True,
        ]
    assert len(await ask(sqlite, session_id="other")) == 4


@pytest.mark.parametrize("with_keys", [True, False], ids=["with keys", "without keys"])
async def test_a_repair_keeps_what_the_chain_proves_and_what_goes_on_is_sealed(
    with_keys: bool, sqlite: SQLiteSessions, tmp_path: Path
) -> None:
    for number in range(3):
        await ask(sqlite, f"{CANARY} {number}")
    connection = sqlite3.connect(sqlite.path)
    (position,) = connection.execute("SELECT position FROM rows ORDER BY position LIMIT 1 OFFSET 4").fetchone()
    connection.execute("UPDATE rows SET body = x'020304' WHERE position = ?", (position,))
    connection.commit()
    connection.close()
    place = sqlite if with_keys else seen_with(sqlite, None)
    report = await Sessions(place).doctor(repair=True)
    assert report.ok
    rows = await rows_in(seen_with(sqlite, None))
    assert len(rows) == (5 if with_keys else 4)
    assert all(is_sealed(row) for row in rows)
    assert not holding(sqlite, tmp_path)
    assert len(await ask(sqlite)) == 6


@pytest.fixture
def bucket_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "testing")
    with moto_s3(tmp_path / "log") as url:
        yield url


async def test_sessions_in_a_bucket_are_sealed_too(tmp_path: Path, bucket_url: str) -> None:
    place = encrypted("journal on s3", tmp_path, bucket_url)
    await ask(place)
    assert len(await ask(place)) == 4
    assert isinstance(place, JournalSessions)
    objects = place.storage.open_objects("reader")
    bodies = [(await objects.get(info.key)).body for info in await objects.list("")]
    await objects.aclose()
    assert bodies
    assert not any(CANARY.encode() in body for body in bodies)
    await Sessions(place).erase_key("s")
    with pytest.raises(KeyErased):
        await ask(place)


async def test_a_posted_call_is_answered_and_never_readable(sqlite: SQLiteSessions, tmp_path: Path) -> None:
    runtime = Runtime(sessions=sqlite, peers=Peers())
    hosted = runtime.agent(AgentSpec(name="default", model=ScriptedModel([f"{CANARY} answer"], loop=True)))
    async with runtime:
        with anyio.fail_after(40):
            await hosted.session("s").post(f"{CANARY} posted")
            while len(await hosted.session("s").messages()) < 2:
                assert not holding(sqlite, tmp_path)
                await anyio.sleep(0.05)
    assert not holding(sqlite, tmp_path)
    assert [hit.seq for hit in (await Sessions(sqlite).search("posted")).hits] == [1]


async def test_a_memory_of_its_own_learns_from_encrypted_sessions(sqlite: SQLiteSessions, tmp_path: Path) -> None:
    memory = SQLiteMemoryStore(tmp_path / "memory.db", extraction=True)
    manager = MemoryManager([memory])
    agent = Agent(
        ScriptedModel(["I see."], loop=True),
        session_manager=session_in(sqlite),
        memory_manager=manager,
        callback_handler=None,
    )
    async with agent:
        for _ in range(5):
            await agent.invoke_async("My parrot is called Mango.")
        await manager.flush()
    assert any("Mango" in entry.content for entry in await memory.search("parrot"))
    await memory.aclose()
    assert not holding(seen_with(sqlite, None), tmp_path / "sessions", "Mango")


async def test_many_sessions_at_once_have_a_key_each(place: EncryptedPlace) -> None:
    runtime = Runtime(sessions=place)
    model = ScriptedModel([f"{CANARY} answer"], loop=True)
    hosted = [runtime.agent(AgentSpec(name=name, model=model)) for name in ("a0", "a1")]
    async with runtime, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(hosted[number // 6].session(f"s{number % 6}").invoke, "hello")
    heads = {}
    for number in range(6):
        rows = [*await rows_in(place, "a0", f"s{number}"), *await rows_in(place, "a1", f"s{number}")]
        (heads[number],) = {head_of(bytes(row.body)).key_id for row in rows}  # type: ignore[union-attr]
    assert len(set(heads.values())) == 6
    assert all(each.ok for each in (await Sessions(place).doctor()).sessions)


async def test_a_place_of_keys_that_is_away_for_a_while_loses_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    place = SQLiteSessions(tmp_path / "s.db", encryption=LocalKeys(keys))
    async with agent_in(place) as agent:
        await agent.invoke_async("one")
        keys.rename(tmp_path / "away")
        await agent.invoke_async("two")  # The session is open, and has its key.
        with pytest.raises(StoreUnavailable, match="is gone"):
            await Sessions(place).show("s")
        (tmp_path / "away").rename(keys)
    assert len(await ask(place)) == 6
