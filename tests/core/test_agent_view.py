"""The state that snapshots are made from, and their bytes, which are put together from messages encoded before."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import json_file
from repertory.core.message_tree.opening import needed_of
from repertory.core.messages import ContentBlock, Message
from repertory.core.snapshots.agent_view import AgentView
from repertory.core.snapshots.document import read_snapshot, snapshot_content, snapshot_document
from repertory.core.snapshots.intake import Published
from repertory.errors import CorruptJournal, Invalid
from tests.core.journal.journal_driver import COMMANDS, Driver

TEXTS: Sequence[str] = ("hello", '"messages": []', ',"messages":[],', "ä€😀", "\\", "\u2028", "__bytes_encoded__")


def followed(kept: AgentView | None, rows: Sequence[Row]) -> AgentView:
    """The state after these rows, the new ones added to what was kept where that can be."""
    if kept is not None:
        try:
            kept.add(rows)
        except (Invalid, CorruptJournal):
            kept = None
    return kept or AgentView(needed_of(rows))


def test_a_snapshot_put_together_from_known_bytes_is_the_one_that_is_made_at_once(rng: random.Random) -> None:
    for _ in range(30):
        driver, kept = Driver(), None
        for number in range(40):
            erased = sum(row.erased for row in driver.rows)
            driver.run([(rng.choice(COMMANDS), rng.randrange(1000))])
            if not driver.rows:
                continue
            if erased != sum(row.erased for row in driver.rows):
                kept = None  # As when contents are erased: what is kept may show them.
            kept = followed(kept, driver.rows)
            assert_the_same(kept, driver.rows, f"{number}")


def assert_the_same(kept: AgentView, rows: Sequence[Row], manager: str) -> None:
    needed = needed_of(rows)
    content = replace(
        snapshot_content(restore(needed).fold, None, manager),
        app_data={"messages": [], "note": '"messages": []'},
        system_prompt='"data": {"messages": []}',
    )
    wanted = json_file(snapshot_document(content, kept.at, kept.position(7)), indent=None)
    body, published = kept.snapshot(replace(content, messages=()), kept.position(7))
    assert (body, published) == (wanted, Published.of(content))
    assert kept.snapshot(content, kept.position(7)) == (body, published)
    assert read_snapshot(json.loads(body)).position == kept.position(7)  # Its digest is right.


@pytest.mark.parametrize("text", [*TEXTS, "\ud800"], ids=ascii)
def test_texts_that_look_like_a_snapshot_or_have_no_form_change_nothing(text: str) -> None:
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    file: ContentBlock = {"document": {"format": "txt", "name": text, "source": {"bytes": b"x"}}}
    said: Message = {"role": "user", "content": [{"text": text}, file]}
    rows = [appender.append(StateChanged(at=1.0, set={text: {"messages": [], "b": text}}))]
    kept = AgentView(rows)
    rows.append(appender.append(MessageAdded(at=2.0, message=said, turn=1, index=0)))
    kept.add(rows[1:])
    assert_the_same(kept, rows, text)


def test_a_message_that_was_shown_before_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from repertory.core.snapshots import agent_view

    encoded: list[Message] = []
    real = agent_view._encode
    monkeypatch.setattr(agent_view, "_encode", lambda message: (encoded.append(message), real(message))[1])
    driver = Driver()
    kept: AgentView | None = None
    for number in range(10):
        driver.run([("prompt", 2 * number), ("answer", number)])
        kept = followed(kept, driver.rows)
        kept.snapshot(snapshot_content(kept.fold, None, ""), kept.position(1))
    assert len(encoded) == driver.fold.message_count == 20
