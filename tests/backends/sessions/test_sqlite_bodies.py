"""How bodies lie in a session database: long ones packed, and what the first version wrote is read as it is."""

from __future__ import annotations

import random
import sqlite3
import zlib
from pathlib import Path

import pytest

from repertory.backends.ports import Batch
from repertory.backends.sessions.sqlite.reading import PACKED_FROM_BYTES, pack_rows, unpack_rows, unpacked
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "the code of the safe is 4711"


def journal(*texts: str) -> list[Row]:
    appender = Appender("default", Fold(), None, random.Random(1).randbytes)
    rows: list[Row] = []
    for index, text in enumerate(texts):
        role = "user" if index % 2 == 0 else "assistant"
        said = MessageAdded(
            at=1.7e9 + index,
            message={"role": role, "content": [{"text": text}]},  # type: ignore[typeddict-item] - one of two
            turn=index // 2 + 1,
            index=index,
        )
        rows.append(appender.append(said))
    return rows


async def stored(path: Path, rows: list[Row], owner: str = "writer") -> None:
    store = SQLiteSessionStore(path, owner=owner)
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows)])
    await store.aclose()


async def loaded(path: Path) -> list[Row]:
    store = SQLiteSessionStore(path, owner="reader")
    try:
        return list(await store.load("s", "default", whole=True))
    finally:
        await store.aclose()


def in_file(path: Path) -> list[bytes]:
    connection = sqlite3.connect(path)
    try:
        return [bytes(body) for (body,) in connection.execute("SELECT body FROM rows ORDER BY position")]
    finally:
        connection.close()


def test_whatever_is_packed_is_unpacked_as_it_was(rng: random.Random) -> None:
    for _ in range(200):
        letters = rng.choice(["ab ", "abcdefghijklmnopqrstuvwxyz .,", "äöü€😀", '{"$bytes":"AAAA"}\\n'])
        (row,) = journal("".join(rng.choices(letters, k=rng.randrange(4000))))
        (kept,) = pack_rows([row])
        assert unpacked(kept) == row
        assert unpack_rows([kept, row]) == [row, row]
        assert len(kept.body) <= len(row.body)


def test_a_planted_body_that_inflates_to_gigabytes_stays_packed_and_is_damage_to_its_reader() -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = b"".join([b"\x01", *(stream.compress(bytes(1 << 20)) for _ in range(256)), stream.flush()])
    (row,) = journal("hello")
    planted = row._replace(body=packed)
    assert unpacked(planted) == planted
    with pytest.raises(CorruptJournal):
        restore([planted])


def test_what_the_first_release_packed_is_read_for_ever() -> None:
    kept = (
        "01831962660235c4c8940c533c4b14328b15ca8b3281192d4f47a1385f21132c028cbc143d8551d9d1d0202f6d105bae18a1172cc62668"
    )
    row = Row("default", 1, 1, 1, 1, bytes(16), b"s" * 16, bytes.fromhex(f"{kept}258b8919f642a31600"))
    text = "It is written, so it is read. " * 20
    usage = '"metadata":{"usage":{"inputTokens":12,"outputTokens":34,"totalTokens":46}}'
    message = f'{{"role":"assistant","content":[{{"text":"{text}"}}],{usage}}}'
    assert unpacked(row).body.decode() == f'{{"at":1764000000.25,"message":{message},"turn":1,"index":1}}'


def test_short_bodies_and_those_that_do_not_become_shorter_stay_as_they_are(rng: random.Random) -> None:
    short, noise = journal("short", rng.randbytes(3000).hex()[:3000])
    assert pack_rows([short]) == [short]
    (row,) = pack_rows([noise._replace(body=b"{" + rng.randbytes(3000))])
    assert row.body[:1] == b"{"
    long, *_ = journal("long " * PACKED_FROM_BYTES)
    assert len(pack_rows([short, long])[1].body) < PACKED_FROM_BYTES


def test_an_erased_row_is_never_unpacked() -> None:
    (row,) = journal("long " * PACKED_FROM_BYTES)
    erased = row.without_content()._replace(body=b"\x01" + bytes(31))
    assert unpacked(erased) == erased
    assert pack_rows([erased]) == [erased]


async def test_a_long_body_is_packed_in_the_file_and_whole_in_every_answer(tmp_path: Path) -> None:
    rows = journal("first", "a long answer, " * 100, "second", "another long answer, " * 100)
    await stored(tmp_path / "a.db", rows)
    assert await loaded(tmp_path / "a.db") == rows
    kept = in_file(tmp_path / "a.db")
    assert [body[:1] for body in kept] == [b"{", b"\x01", b"{", b"\x01"]
    assert sum(map(len, kept)) < sum(len(row.body) for row in rows) / 4
    store = SQLiteSessionStore(tmp_path / "a.db", owner="lister")
    (info,) = await store.sessions()
    assert (info.created_at, info.updated_at) == (1.7e9, 1.7e9 + 3)
    await store.aclose()


async def test_a_packed_body_that_is_erased_is_gone_and_its_digest_stands_in_its_place(tmp_path: Path) -> None:
    rows = journal("first", f"{SECRET}, " * 100, "last")
    path = tmp_path / "a.db"
    store = SQLiteSessionStore(path, owner="writer")
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows)])
    before = in_file(path)[1]
    await store.append([Batch(lease=lease, rows=(), erase=(("default", 2),))])
    await store.aclose()
    assert await loaded(path) == [rows[0], rows[1].without_content(), rows[2]]
    files = [each.read_bytes() for each in tmp_path.iterdir() if each.is_file()]  # noqa: ASYNC240 - nothing else runs
    assert all(before not in content and SECRET.encode() not in content for content in files)


@pytest.mark.parametrize("damage", ["one byte", "cut off", "not packed", "something behind it"])
async def test_a_damaged_packed_body_is_found_by_its_link(tmp_path: Path, damage: str) -> None:
    rows = journal("first", "a long answer, " * 100)
    path = tmp_path / "a.db"
    await stored(path, rows)
    body = in_file(path)[1]
    instead = {
        "one byte": bytes((*body[:20], body[20] ^ 1, *body[21:])),
        "cut off": body[:-5],
        "not packed": b"\x01" + rows[1].body,
        "something behind it": body + b"x",
    }[damage]
    connection = sqlite3.connect(path)
    connection.execute("UPDATE rows SET body = ? WHERE seq = 2", (instead,))
    connection.commit()
    connection.close()
    with pytest.raises(CorruptJournal, match="seq=2"):
        restore(await loaded(path), session_id="s")
