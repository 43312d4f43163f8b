"""Snapshots as documents: what others read in them, and what is read of theirs. The shapes are the documented ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender
from repertory.core.json_bytes import epoch, iso, json_file, parsed, zulu
from repertory.core.snapshots.document import (
    JournalPosition,
    SnapshotContent,
    content_digest,
    read_snapshot,
    snapshot_content,
    snapshot_document,
)
from repertory.core.snapshots.location import (
    Numbering,
    SnapshotManifest,
    check_snapshot_id,
    file_name,
    id_of_file,
    in_order,
    manifest_document,
    read_manifest,
)
from repertory.core.snapshots.trigger import AgentData, SnapshotEvery, wanted_by
from repertory.errors import Invalid, SnapshotException

UUID7 = "01a1fcb4-7fbc-760e-83a0-e91458fb9691"
CONTENT = SnapshotContent(
    messages=[
        {"role": "user", "content": [{"text": "look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}]},
    ],
    state={"k": [1, 2.5, None], "lone": "\ud800"},
    manager={"__name__": "NullConversationManager", "removed_message_count": 0},
    model_state={"m": 1},
    app_data={"mine": True},
)
STANDING = JournalPosition(seq=7, link="ab" * 16, generation=3, more={"manager": "Other"})


def through_a_file(document: dict[str, object]) -> dict[str, object]:
    return parsed(json_file(document, indent=None))


def test_a_document_says_the_same_when_it_is_read_again() -> None:
    read = read_snapshot(through_a_file(snapshot_document(CONTENT, 1764000000.25, STANDING)))
    assert read.content == CONTENT
    assert read.created_at == 1764000000.25
    assert read.position == STANDING


def test_the_envelope_has_both_names_of_each_field_and_no_system_prompt() -> None:
    document = through_a_file(snapshot_document(CONTENT, 1764000000.25))
    for snake, camel in (
        ("schema_version", "schemaVersion"),
        ("created_at", "createdAt"),
        ("app_data", "appData"),
    ):
        assert document[snake] == document[camel]
    assert document["scope"] == "agent"
    assert document["schema_version"] == "1.0"
    assert document["created_at"] == "2025-11-24T16:00:00.250Z"
    assert set(document["data"]) == {  # type: ignore[call-overload]
        "messages",
        "state",
        "conversation_manager_state",
        "interrupt_state",
        "model_state",
        "modelState",
    }


def test_bytes_are_marked_as_the_documents_have_it() -> None:
    text = json.dumps(snapshot_document(CONTENT, 1.0))
    assert '{"__bytes_encoded__": true, "data": "iVBORw=="}' in text


THEIRS: dict[str, Any] = {
    "scope": "agent",
    "schema_version": "1.0",
    "created_at": "2026-11-21T06:04:10.044092Z",
    "data": {
        "messages": [{"role": "user", "content": [{"text": "q0"}], "tracking_id": "ef64"}],
        "state": {"k": 1},
        "conversation_manager_state": {"__name__": "SlidingWindowConversationManager", "removed_message_count": 0},
        "interrupt_state": {"interrupts": {}, "context": {}, "activated": False},
        "system_prompt": [{"text": "SP"}],
        "model_state": {"m": 1},
    },
    "app_data": {"mine": 1},
}


def test_either_spelling_is_read() -> None:
    camel = {
        "scope": "agent",
        "schemaVersion": "1.0",
        "createdAt": THEIRS["created_at"],
        "data": {"messages": THEIRS["data"]["messages"], "state": {"k": 1}, "modelState": {"m": 1}},
        "appData": {"mine": 1},
    }
    for found in (read_snapshot(THEIRS), read_snapshot(camel)):
        assert found.position is None
        assert found.content.messages == THEIRS["data"]["messages"]
        assert found.content.state == {"k": 1}
        assert found.content.model_state == {"m": 1}
        assert found.content.app_data == {"mine": 1}
        assert found.created_at == pytest.approx(1795241050.044092)


def test_what_others_have_changed_is_not_taken_for_ours() -> None:
    document = through_a_file(snapshot_document(CONTENT, 1.0, STANDING))
    rewritten: dict[str, Any] = json.loads(json.dumps(document, sort_keys=True))
    assert read_snapshot(rewritten).position == STANDING
    rewritten["data"]["state"]["k"] = 2
    with pytest.raises(SnapshotException, match="not as it was written"):
        read_snapshot(rewritten)
    without = {key: value for key, value in document.items() if key != "repertory"}
    assert read_snapshot(without).position is None


def test_a_dictionary_that_looks_like_marked_bytes_is_still_ours() -> None:
    content = SnapshotContent(messages=[], state={"x": {"__bytes_encoded__": True, "data": "aGk="}})
    assert read_snapshot(through_a_file(snapshot_document(content, 1.0, STANDING))).position == STANDING


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {**THEIRS, "schema_version": "2.0"},
        {**THEIRS, "scope": "multiAgent"},
        {**THEIRS, "data": None},
        {**THEIRS, "data": {"messages": "none"}},
        {**THEIRS, "data": {"messages": [{"role": "system", "content": [{"text": "x"}]}]}},
        {**THEIRS, "data": {"messages": [], "state": [1]}},
    ],
)
def test_what_is_no_snapshot_is_refused(wrong: object) -> None:
    with pytest.raises(SnapshotException):
        read_snapshot(wrong)


def test_the_digest_does_not_depend_on_the_order_of_keys_and_refuses_what_is_not_json() -> None:
    assert content_digest({"a": 1, "b": [1]}) == content_digest({"b": [1], "a": 1})
    assert content_digest({"a": 1}) != content_digest({"a": 2})
    with pytest.raises(Invalid):
        content_digest({"a": float("nan")})


def test_a_snapshot_shows_what_the_journal_shows_and_keeps_what_others_keep() -> None:
    appender = Appender("default", Fold(), None, lambda size: b"s" * size)
    appender.append(StateChanged(at=1.0, full={"k": 1}))
    appender.append(MessageAdded(at=1.0, message={"role": "user", "content": [{"text": "hi"}]}, turn=1, index=0))
    found = read_snapshot(THEIRS).content
    shown = snapshot_content(appender.fold, found, "NullConversationManager")
    assert shown.messages == [{"role": "user", "content": [{"text": "hi"}]}]
    assert shown.state == {"k": 1}
    assert shown.manager == {"__name__": "NullConversationManager", "removed_message_count": 0}
    assert (shown.model_state, shown.app_data) == ({"m": 1}, {"mine": 1})
    assert snapshot_content(appender.fold, None, "").manager == {
        "__name__": "SlidingWindowConversationManager",
        "removed_message_count": 0,
        "model_call_count": 0,
    }


@pytest.mark.parametrize(
    ("given", "known"),
    [(3, "3"), ("3", "3"), ("00003", "3"), ("100000", "100000"), (UUID7, UUID7), ("mine", "mine")],
    ids=repr,
)
def test_ids_of_snapshots(given: str | int, known: str) -> None:
    assert check_snapshot_id(given) == known
    assert id_of_file(file_name(known)) == known


@pytest.mark.parametrize("wrong", [0, -1, "0", "", "..", "a/b", True, None, 1.0], ids=repr)
def test_what_is_no_id_is_refused(wrong: object) -> None:
    with pytest.raises(Invalid):
        check_snapshot_id(wrong)


def test_numbers_come_first_and_in_their_order() -> None:
    assert file_name("3") == "snapshot_00003.json"
    assert in_order(["10", UUID7, "9", "100000"]) == ["9", "10", "100000", UUID7]
    assert id_of_file("manifest.json") is None


def test_a_manifest_says_the_same_when_it_is_read_again_and_is_read_in_either_spelling() -> None:
    numbering = Numbering(next_number=4, last_at=1764000000.25, taken=7, mark=9)
    document = manifest_document(numbering, 1764000000.5)
    assert read_manifest(json.loads(json.dumps(document))) == numbering
    assert (document["schemaVersion"], document["nextSnapshotId"]) == ("1.0", "4")
    assert document["updatedAt"] == "2025-11-24T16:00:00.500Z"
    theirs = {"schemaVersion": "1.0", "nextSnapshotId": "4", "updatedAt": "2025-11-24T16:00:00.500Z"}
    assert read_manifest(theirs) == Numbering(next_number=4, last_at=1764000000.5)
    assert read_manifest({"next_snapshot_id": 1, "updated_at": "2025-11-24T16:00:00Z"}) == Numbering()
    assert read_manifest(SnapshotManifest(next_snapshot_id="2")) == Numbering(next_number=2)
    assert read_manifest(None) == Numbering()
    for wrong in ("x", {"nextSnapshotId": "x"}, {"nextSnapshotId": "0"}):
        with pytest.raises(ValueError):
            read_manifest(wrong)


def test_a_ready_trigger_counts_turns_and_seconds() -> None:
    assert [turn for turn in range(1, 11) if SnapshotEvery(turns=5).due(turn, 0.0)] == [5, 10]
    assert SnapshotEvery(seconds=60).due(1, 60.0)
    assert not SnapshotEvery(seconds=60).due(5, 59.0)
    assert SnapshotEvery(5, 60).due(1, 61.0)
    assert SnapshotEvery(5, 60).due(5, 0.0)


@pytest.mark.parametrize("wrong", [{}, {"turns": 0}, {"seconds": 0}, {"seconds": -1.0}])
def test_a_ready_trigger_that_never_fires_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        SnapshotEvery(**wrong)


def test_a_trigger_is_given_what_it_names() -> None:
    assert wanted_by(lambda: True) == set()
    assert wanted_by(lambda turn_count: True) == {"turn_count"}
    assert wanted_by(lambda *, agent_data, limit=3: True) == {"agent_data"}
    assert wanted_by(lambda **everything: True) == {"turn_count", "last_snapshot_at", "agent_data"}
    for wrong in (lambda params: True, lambda turn_count, other: True, lambda turn_count, /: True):
        with pytest.raises(Invalid):
            wanted_by(wrong)


def test_agent_data_is_read_by_attribute_and_by_key() -> None:
    data = AgentData([{"role": "user", "content": [{"text": "hi"}]}], {"k": 1})
    assert data.messages is data["messages"]
    assert data["state"] == data.state == {"k": 1}
    assert dict(data) == {"messages": data.messages, "state": {"k": 1}}
    with pytest.raises(KeyError):
        data["model"]


@pytest.mark.parametrize(
    "text",
    ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999", "soon", "1e19", None, 7],
)
def test_a_time_that_was_read_can_be_written(text: object) -> None:
    at = epoch(text)
    assert epoch(iso(at)) == epoch(zulu(at)) == at
