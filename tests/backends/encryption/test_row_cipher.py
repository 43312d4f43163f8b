"""Sealed rows: what goes in comes out, in its own place alone, and nothing of it is readable on the way."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.backends.encryption.row_cipher import RowCipher
from repertory.backends.encryption_ports import KeyRing
from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.export_lines import row_line
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, prove, records_of, restore
from repertory.core.journal.rows import Row, link_of, verify_whole
from repertory.core.journal.sealing import SEALED, SealedBody, is_sealed, plain_journal, sealed_journal, time_of
from repertory.errors import Corrupt, CorruptJournal, EncryptionNeeded, KeyMissing
from tests.backends.encryption.one_ring import CIPHER, RING
from tests.core.journal.journal_driver import COMMANDS, Driver

GOLDEN = Path(__file__).parents[2] / "golden" / "sealed-v1.jsonl"
commands = st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 99)), max_size=40)


def bare(rows: list[Row]) -> list[Row]:
    return [row._replace(body=bytes(row.body)) for row in rows]


def opened(rows: list[Row], cipher: RowCipher = CIPHER) -> list[Row]:
    return [cipher.opened(row) for row in bare(rows)]


@given(commands)
def test_a_sealed_journal_says_what_the_plain_one_says_and_has_a_chain_of_its_own(
    script: list[tuple[str, int]],
) -> None:
    driver = Driver()
    driver.run(script)
    sealed = sealed_journal(driver.rows, CIPHER.seal)
    verify_whole(bare(sealed))
    assert all(is_sealed(row) or row.erased for row in sealed)
    assert records_of(opened(sealed)) == records_of(driver.rows)
    assert restore(opened(sealed)).fold.image() == driver.image()
    prove(opened(sealed))
    assert list(plain_journal(opened(sealed))) == list(driver.rows)


@given(commands)
def test_an_appender_that_seals_makes_the_rows_of_a_journal_that_is_sealed_afterwards(
    script: list[tuple[str, int]],
) -> None:
    plain, sealing = Driver(), Driver()
    sealing.appender = Appender(
        "agent", Fold(), None, lambda count: bytes([len(sealing.rows) % 256]) * count, CIPHER.seal
    )
    kept = [(name, number) for name, number in script if name not in ("reopen", "redact", "rewind")]
    plain.run(kept)
    sealing.run(kept)
    assert sealing.rows == sealed_journal(plain.rows, CIPHER.seal)


@given(st.text(max_size=200), st.floats(0, 4e9))
def test_the_time_is_readable_without_the_key_and_the_text_is_not(text: str, at: float) -> None:
    appender = Appender("a", Fold(), None, lambda count: b"s" * count, CIPHER.seal)
    row = appender.append(StateChanged(at=at, full={"canary": f"canary {text}"}))
    stored = bytes(row.body)
    assert at_of(stored) == at
    assert b"canary" not in stored
    assert decode(row.kind, row.version, row.body) == StateChanged(at=at, full={"canary": f"canary {text}"})


def _said(cipher: RowCipher = CIPHER, agent: str = "a", text: str = "hello") -> list[Row]:
    appender = Appender(agent, Fold(), None, lambda count: b"s" * count, cipher.seal)
    said = MessageAdded(at=1.0, message={"role": "user", "content": [{"text": text}]}, turn=1, index=0)
    answer = MessageAdded(at=2.0, message={"role": "assistant", "content": [{"text": text}]}, turn=1, index=1)
    return bare([appender.append(said), appender.append(answer)])


def relinked(rows: list[Row]) -> list[Row]:
    """As someone who can write, and has no key, would make the chain fit."""
    return list(sealed_journal([row._replace(version=row.version | SEALED) for row in rows], lambda row: row))


def test_every_flipped_bit_is_found_even_where_the_chain_was_made_to_fit(rng: random.Random) -> None:
    (row, other) = _said()
    for place in range(len(row.body)):
        body = bytearray(row.body)
        body[place] ^= 1 << rng.randrange(8)
        with pytest.raises((Corrupt, KeyMissing)):
            records_of(opened(relinked([row._replace(body=bytes(body)), other])))
    with pytest.raises(CorruptJournal):
        restore(opened([row._replace(body=row.body[:-1] + b"x"), other]))


@pytest.mark.parametrize("end", [1, 20, 29, 40])
def test_a_sealed_body_that_was_cut_off_is_corrupt(end: int) -> None:
    (row, other) = _said()
    with pytest.raises(CorruptJournal):
        records_of(opened(relinked([row._replace(body=row.body[:end]), other])))


def test_rows_cannot_change_places() -> None:
    first, second = _said()
    swapped = relinked([first._replace(body=second.body), second._replace(body=first.body)])
    with pytest.raises(CorruptJournal, match="not sealed for this place"):
        records_of(opened(swapped))
    elsewhere = [row._replace(agent_id="b") for row in (first, second)]
    with pytest.raises(CorruptJournal, match="not sealed for this place"):
        records_of(opened(relinked(elsewhere)))
    lowered = [first, second._replace(low=2)]
    with pytest.raises(CorruptJournal, match="not sealed for this place"):
        records_of(opened(relinked(lowered)))
    moved = RowCipher(KeyRing(session_id="another", current=RING.current, keys=RING.keys))
    with pytest.raises(CorruptJournal, match="not sealed for this place"):
        records_of(opened([first, second], moved))


def test_another_key_and_no_key_say_what_is_wrong() -> None:
    rows = _said()
    other = RowCipher(KeyRing(session_id="any", current=b"z" * 8, keys={b"z" * 8: bytes(32)}))
    with pytest.raises(KeyMissing, match="key_id='6b6b6b6b6b6b6b6b'"):
        records_of(opened(rows, other))
    same_id = RowCipher(KeyRing(session_id="any", current=RING.current, keys={RING.current: bytes(32)}))
    with pytest.raises(CorruptJournal):
        records_of(opened(rows, same_id))
    with pytest.raises(EncryptionNeeded, match="encryption="):
        records_of(rows)


def test_a_row_in_plain_text_behind_the_first_key_is_corrupt_and_one_before_it_is_read() -> None:
    plain = list(plain_journal(opened(_said())))
    with pytest.raises(CorruptJournal, match="written without the keys"):
        records_of([CIPHER.opened(row) for row in plain])
    before = RowCipher(KeyRing(session_id="any", current=RING.current, keys=RING.keys, plain_until={"a": 2}))
    assert len(records_of([before.opened(row) for row in plain])) == 2


def test_the_same_row_gives_the_same_bytes_and_any_difference_another_nonce() -> None:
    assert _said() == _said()
    nonces = {row.body[17:29] for rows in (_said(), _said(agent="b"), _said(text="other")) for row in rows}
    assert len(nonces) == 6
    row = Row("a", 1, 1, 1, 1, b"", b"s" * 16, b'{"at":1.0}')
    salted = [CIPHER.seal(row._replace(salt=bytes([n]) * 16)).body[17:29] for n in range(50)]
    assert len(set(salted)) == 50


def test_after_a_rotation_old_rows_are_read_and_new_ones_name_the_new_key() -> None:
    old = _said()
    ring = KeyRing(session_id="any", current=b"n" * 8, keys={**RING.keys, b"n" * 8: b"x" * 32})
    rotated = RowCipher(ring)
    restored = restore(opened(old, rotated))
    appender = Appender("a", restored.fold, restored.link, lambda count: b"s" * count, rotated.seal)
    row = appender.append(StateChanged(at=3.0, full={}))
    assert row.body[9:17] == b"n" * 8
    assert len(records_of(opened([*old, row], rotated))) == 3
    with pytest.raises(KeyMissing):
        records_of(opened([*old, row]))


def test_an_erased_row_keeps_the_chain_and_needs_no_key() -> None:
    first, second = _said()
    erased = [first.without_content(), second]
    verify_whole(erased)
    assert [record is None for _, record in records_of(opened(erased))] == [True, False]


def test_a_body_is_opened_when_it_is_looked_at_and_once() -> None:
    calls: list[bytes] = []

    def opens(body: bytes) -> bytes:
        calls.append(body)
        return b"plain"

    body = SealedBody.unopened(b"sealed", opens)
    assert (body, calls) == (b"sealed", [])
    assert (body.plain, body.plain, calls) == (b"plain", b"plain", [b"sealed"])


@pytest.mark.parametrize("body", [b"", b"{}", b'{"at":"x"}', b'{"at":}', b'{"bt":1}'])
def test_a_body_without_a_time_has_none(body: bytes) -> None:
    assert time_of(body) != time_of(body)


def test_calls_are_sealed_under_their_names() -> None:
    sealed = CIPHER.seal_text("s\0a\0t", "say hello \ud83d")
    assert CIPHER.open_text("s\0a\0t", sealed) == "say hello \ud83d"
    assert "hello" not in sealed
    for name, text in (("s\0a\0u", sealed), ("s\0a\0t", sealed[:-8]), ("s\0a\0t", "no base64")):
        with pytest.raises((Corrupt, KeyMissing)):
            CIPHER.open_text(name, text)


def test_rows_that_this_format_has_written_are_read_for_ever() -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    rows = [
        Row(
            agent_id=line["agent"],
            seq=line["seq"],
            kind=line["kind"],
            version=line["version"],
            low=line["low"],
            link=bytes.fromhex(line["link"]),
            salt=bytes.fromhex(line["salt"]),
            body=bytes.fromhex(line["body"]),
        )
        for line in lines
    ]
    verify_whole(rows)
    plain = [json.loads(row.body) for row in plain_journal(opened(rows))]
    assert plain == [line["plain"] for line in lines]
    assert rows == _said()
    assert row_line(next(iter(plain_journal(opened(rows))))).startswith('{"agent":"a"')
    assert link_of(rows[0].link, rows[1]) == rows[1].link
