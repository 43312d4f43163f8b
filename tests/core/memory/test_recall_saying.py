"""What is kept of a message, or of a single memory. Our decisions."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.memory.options import AddMessagesContext
from repertory.core.messages import Message
from repertory.core.recall.entries import saying_of, sayings_of, speaker_of
from repertory.errors import Invalid

NOWHERE = AddMessagesContext()


def said(text: str, **known: Any) -> Message:
    return {"role": "user", "content": [{"text": text}], **known}  # type: ignore[typeddict-item]


def test_only_messages_that_say_something_are_kept() -> None:
    use: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "t", "input": {}}}]}
    where = AddMessagesContext(session_id="s", agent_id="a", sequence_numbers=[4, 5, 9], said_at=1683554160.0)
    first, last = sayings_of([said("one"), use, said("two")], where)
    assert (first.seq, last.seq) == (4, 9)
    assert (first.role, first.session_id, first.agent_id) == ("user", "s", "a")
    assert first.heading == "8 May 2023"


def test_numbers_mean_nothing_without_a_session() -> None:
    (only,) = sayings_of([said("one")], AddMessagesContext(sequence_numbers=[4]))
    assert only.seq is None


def test_there_is_a_number_for_each_message() -> None:
    with pytest.raises(Invalid, match="sequence number per message"):
        sayings_of([said("one")], AddMessagesContext(sequence_numbers=[1, 2]))


def test_a_message_may_say_who_spoke() -> None:
    (only,) = sayings_of([said("one", metadata={"custom": {"speaker": "Ada"}})], NOWHERE)
    assert (only.speaker, only.heading) == ("Ada", "Ada")


@pytest.mark.parametrize(
    ("content", "speaker"),
    [
        ("Ada: hello", "Ada"),
        ("Ada Lovelace: hello", "Ada Lovelace"),
        ("  J\u00f6rg-Peter: hello", "J\u00f6rg-Peter"),
        ("see http://example.org", None),
        ("12: hello", None),
        ("a sentence with many words: hello", None),
        ("hello", None),
    ],
)
def test_a_line_of_a_transcript_says_who_speaks(content: str, speaker: str | None) -> None:
    assert speaker_of(content) == speaker


@pytest.mark.parametrize(
    ("metadata", "kind", "speaker", "session", "heading", "said_at"),
    [
        (None, "fact", None, None, "", None),
        ({"topic": "tea"}, "fact", None, None, "", None),
        ({"speaker": "Ada", "session": 3}, "turn", "Ada", "3", "Ada", None),
        ({"session_id": "s", "date": "8 May, 2023"}, "turn", None, "s", "8 May, 2023", None),
        ({"timestamp": "2023-05-08T13:56:00Z"}, "fact", None, None, "2023-05-08T13:56:00Z", 1683554160.0),
        ({"said_at": 1683554160}, "fact", None, None, "8 May 2023", 1683554160.0),
    ],
)
def test_metadata_says_what_a_memory_is(
    metadata: Any, kind: str, speaker: str | None, session: str | None, heading: str, said_at: float | None
) -> None:
    found = saying_of("content", metadata, NOWHERE)
    assert (found.kind, found.speaker, found.session_id) == (kind, speaker, session)
    assert found.said_at == said_at
    assert found.heading == heading


def test_what_was_taken_from_messages_is_a_fact() -> None:
    where = AddMessagesContext(session_id="s", sequence_numbers=[1])
    assert saying_of("content", {"speaker": "Ada"}, where).kind == "fact"


@pytest.mark.parametrize(
    ("content", "metadata"), [("", None), (" ", None), (3, None), ("a", {"b": object()}), ("a", 3)]
)
def test_what_cannot_be_kept_is_refused(content: Any, metadata: Any) -> None:
    with pytest.raises(Invalid):
        saying_of(content, metadata, NOWHERE)


def test_contents_that_say_the_same_have_the_same_digest() -> None:
    first, second, third = (
        saying_of(text, None, NOWHERE) for text in ("Ada likes tea", " ada  LIKES tea.", "Ada likes")
    )
    assert first.digest == second.digest != third.digest


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert saying_of("a\ud800b", None, NOWHERE).content == "a\ufffdb"


@pytest.mark.parametrize("at", [1e20, -1e20])
def test_a_time_beyond_any_calendar_has_no_day(at: float) -> None:
    (only,) = sayings_of([said("one")], AddMessagesContext(said_at=at))
    assert only.heading == ""
