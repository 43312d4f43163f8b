"""Snapshots of version 1 say the same for ever: what this release writes, and what strands-agents 1.62 writes.

The files in `tests/golden/snapshots-v1` were written once and are never written again: `ours.json` and `manifest.json`
by the first release that had them, `theirs.json` by strands-agents, which had gone on with it.
"""

from __future__ import annotations

from repertory.core.json_bytes import parsed
from repertory.core.snapshots.document import read_snapshot, snapshot_document
from repertory.core.snapshots.location import Numbering, manifest_document, read_manifest
from tests.source_tree import ROOT

GOLDEN = ROOT / "tests/golden/snapshots-v1"
PNG = b"\x89PNG\r\n\x00\x01"


def golden(name: str) -> dict[str, object]:
    return parsed((GOLDEN / name).read_bytes())


def test_a_snapshot_of_ours_is_known_and_written_the_same_way_again() -> None:
    document = golden("ours.json")
    read = read_snapshot(document)
    assert read.position is not None
    assert (read.position.seq, read.position.generation) == (10, 3)
    assert [message["role"] for message in read.content.messages] == ["user", "assistant"] * 3
    assert read.content.messages[4]["content"][1] == {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert read.content.state == {"k": {"ü": [1, 2.5, None]}}
    assert snapshot_document(read.content, read.created_at, read.position) == document


def test_a_snapshot_of_theirs_is_read_whole() -> None:
    ours, theirs = read_snapshot(golden("ours.json")), read_snapshot(golden("theirs.json"))
    assert theirs.position is None
    assert [message["content"] for message in theirs.content.messages[:6]] == [
        message["content"] for message in ours.content.messages
    ]
    assert len(theirs.content.messages) == 10
    assert theirs.content.state == {"k": {"ü": [1, 2.5, None]}, "theirs": True}
    assert theirs.content.manager["__name__"] == "SlidingWindowConversationManager"


def test_a_manifest_is_read_and_written_the_same_way_again() -> None:
    document = golden("manifest.json")
    numbering = read_manifest(document)
    assert numbering == Numbering(next_number=3, last_at=1795307189.7902684, taken=10, mark=10)
    made = manifest_document(numbering, 1795307189.816)
    ours = dict(made["repertory"])  # type: ignore[call-overload]
    assert len(ours.pop("digest")) == 32
    assert {**made, "repertory": ours} == document
    assert read_manifest(made) == numbering
