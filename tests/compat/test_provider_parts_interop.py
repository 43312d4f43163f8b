"""Sessions with parts that only their provider can read, which the released strands-agents package goes on with too.

Needs the interpreter that `test_layout_interop.py` describes.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import FileStorage
from tests.app.sessions.provider_parts import CONVERSATION, PICTURE, WORDS, texts
from tests.app.sessions.test_layout_interop import PYTHON, Peer, in_bucket, in_folder, plain
from tests.app.sessions.test_layout_interop import bucket_url as bucket_url
from tests.app.sessions.test_layout_interop import ours as ours_by_layout
from tests.app.sessions.test_snapshot_interop import ours as ours_by_snapshots
from tests.bedrock.test_agentcore_interop import INSTALLED
from tests.bedrock.test_agentcore_interop import place as agentcore_place
from tests.bedrock.test_agentcore_interop import server as server

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="NOT TESTED against strands-agents: `make peers` installs it",
    ),
]

PACKAGES = sysconfig.get_path("purelib")
"""A folder with the providers' packages, which the peer lacks."""

__all__ = ["agentcore_place", "bucket_url", "server"]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(params=["files", "s3", "snapshots", "agentcore"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How our agent of the session is made, and what the peer is to be told."""
    match request.param:
        case "files":
            manager, told = in_folder(tmp_path)
        case "s3":
            manager, told = in_bucket(request.getfixturevalue("bucket_url"), tmp_path, monkeypatch)
        case "agentcore":
            if not INSTALLED:
                pytest.skip("NOT TESTED against bedrock-agentcore, which is not in tests/peers/strands")
            manager, told = request.getfixturevalue("agentcore_place")
        case _:
            storage = FileStorage(tmp_path / "kept")
            told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
            return lambda *replies: ours_by_snapshots(storage, *replies), told
    return lambda *replies: ours_by_layout(manager, *replies), told


def test_the_package_reads_words_in_the_place_of_each_part_and_we_get_our_parts_back(peer: Peer, place: Any) -> None:
    ours, told = place
    agent = ours("It is dry now.", "It is wet again.")
    agent.messages.extend(CONVERSATION)
    agent("And now?")
    stored = plain(agent.messages)
    assert stored[: len(CONVERSATION)] == plain(CONVERSATION)
    found = peer.ask("open", **told)["messages"]
    read = [text for place in (1, 3, 5) for text in texts(found)[place]]
    assert [text for text in read if text.startswith("(")] == WORDS
    assert peer.ask("format", packages=PACKAGES).keys() == {"bedrock", "anthropic", "openai"}
    said = peer.ask("say", prompt="And tomorrow?", replies=[[{"text": "Who knows."}]])
    assert texts(said["asked"])[1][0] == WORDS[0]
    again = ours("Good.")
    assert plain(again.messages) == [*stored, *plain(said["messages"][-2:])]
    again("Thank you.")
    assert plain(again.messages)[: len(CONVERSATION)] == plain(CONVERSATION)
    assert texts(peer.ask("open", **told)["messages"])[-1] == ["Good."]


def test_the_packages_models_send_pictures_of_answers_and_words_for_each_part(peer: Peer, place: Any) -> None:
    ours, told = place
    agent = ours("It is dry now.")
    agent.messages.extend(CONVERSATION)
    agent("And now?")
    peer.ask("open", **told)
    formatted = peer.ask("format", packages=PACKAGES)
    searched, drew = formatted["bedrock"][1]["content"], formatted["bedrock"][3]["content"]
    thought = {"reasoningText": {"text": "Let me look.", "signature": "EqQB"}}
    assert searched[0] == {"reasoningContent": thought}
    assert searched[1:3] == [{"text": WORDS[0]}, {"text": WORDS[1]}]
    assert drew[1] == {"image": {"format": "png", "source": plain([{"role": "", "content": {"bytes": PICTURE}}])[0][1]}}
    assert [block["type"] for block in formatted["anthropic"][1]["content"]] == ["thinking", "text", "text", "text"]
    assert [block["type"] for block in formatted["openai"][1]["content"]] == ["text", "text", "text"]


def test_a_part_that_was_edited_elsewhere_is_the_text_that_was_written_there(tmp_path: Path) -> None:
    manager, _ = in_folder(tmp_path)
    agent = ours_by_layout(manager, "It is dry now.")
    agent.messages.extend(CONVERSATION)
    agent("And now?")
    (path,) = tmp_path.rglob("message_1.json")
    text = path.read_text()
    assert WORDS[0].replace('"', '\\"') in text
    path.write_text(text.replace(WORDS[0].replace('"', '\\"'), "(Nothing to see.)"))
    again = ours_by_layout(manager, "Good.")
    content = again.messages[1]["content"]
    assert content[1] == {"text": "(Nothing to see.)"}
    assert content[2] == CONVERSATION[1]["content"][2]
    again("Thank you.")
    assert ours_by_layout(manager).messages[1]["content"] == content
