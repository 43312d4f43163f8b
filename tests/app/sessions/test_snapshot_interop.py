"""Sessions that we and the released strands-agents package go on with in turn, each through snapshots.

Needs the interpreter that `test_layout_interop.py` describes.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    FileStorage,
    NullConversationManager,
    S3Storage,
    ScriptedModel,
    SessionManager,
    SlidingWindowConversationManager,
)
from repertory.app.host.blocking import blocking_host
from tests.app.sessions.test_layout_interop import PNG, PYTHON, Peer, add, plain
from tests.backends.objects.moto_s3 import BUCKET, moto_s3

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="NOT TESTED against strands-agents: `make peers` installs it",
    ),
]

PICTURE = {"image": {"format": "png", "source": {"bytes": {"base64": base64.b64encode(PNG).decode()}}}}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def bucket_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our storage, and what the peer is to be told, for the same sessions."""
    if request.param == "files":
        return FileStorage(tmp_path / "kept"), {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    url = request.getfixturevalue("bucket_url")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    prefix = tmp_path.name
    told = {"session": "s", "bucket": BUCKET, "prefix": prefix, "endpoint": url, "snapshots": "session"}
    return S3Storage(BUCKET, f"{prefix}/session", region_name="us-east-1", endpoint_url=url), told


def ours(storage: Any, *replies: Any, conversation_manager: Any = None, **options: Any) -> Agent:
    manager = SessionManager("s", storage=storage, **options)
    return Agent(
        ScriptedModel(list(replies)),
        tools=[add],
        callback_handler=None,
        session_manager=manager,
        conversation_manager=conversation_manager,
    )


def test_either_side_goes_on_where_the_other_stopped(peer: Peer, place: Any) -> None:
    """With tool pairs, binary content and state, each side more than once."""
    storage, told = place
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}}
    for number in range(2):
        agent = ours(storage, {"toolUse": {"name": "add", "input": {"a": 3, "b": number}}}, "sum", "seen")
        agent.state.set(f"ours-{number}", [number])
        agent("add something")
        agent([{"text": "look"}, {"image": {"format": "png", "source": {"bytes": PNG}}}])
        found = peer.ask("open", **told)
        assert plain(found["messages"]) == plain(agent.messages)
        assert found["state"] == agent.state.get()
        peer.ask("say", prompt="add", replies=[[use], [{"text": "three"}]], state={f"theirs-{number}": True})
        said = peer.ask("say", prompt=[{"text": "look"}, PICTURE], replies=[[{"text": "nice"}]])
        again = ours(storage)
        assert plain(again.messages) == plain(said["messages"])
        assert len(again.messages) == 12 * (number + 1)
        assert again.state.get(f"theirs-{number}") is True
        assert again.state.get(f"ours-{number}") == [number]


def test_a_session_that_the_package_began_is_gone_on_with(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    storage = FileStorage(tmp_path / "kept")
    peer.ask("open", **told, window=4, save="invocation")
    for number in range(4):
        said = peer.ask("say", prompt=f"question {number}", replies=[[{"text": f"answer {number}"}]])
    agent = ours(storage, "ours")
    assert plain(agent.messages) == plain(said["messages"])
    assert len(agent.messages) == 4
    agent("and now?")
    found = peer.ask("open", **told, window=40)
    assert plain(found["messages"]) == plain(agent.messages)


def test_windows_on_both_sides_show_the_same_and_what_was_seen_once_is_not_forgotten(
    peer: Peer, tmp_path: Path, rng: random.Random
) -> None:
    """What the package has hidden before we looked is in nobody's files."""
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    storage, seen = FileStorage(tmp_path / "kept"), list[str]()
    for number in range(4):
        window = SlidingWindowConversationManager(window_size=rng.choice([2, 4, 6]))
        replies = [f"ours {number} {turn}" for turn in range(rng.randrange(1, 4))]
        agent = ours(storage, *replies, conversation_manager=window)
        for reply in replies:
            agent(f"ask {reply}")
            seen += [f"ask {reply}", reply]
        found = peer.ask("open", **told, window=rng.choice([2, 4, 6]))
        assert plain(found["messages"]) == plain(agent.messages)
        for turn in range(rng.randrange(1, 4)):
            said = peer.ask("say", prompt=f"theirs {number} {turn}", replies=[[{"text": f"yes {number} {turn}"}]])
        again = ours(storage, conversation_manager=window)
        assert plain(again.messages) == plain(said["messages"])
        seen += [message["content"][0]["text"] for message in said["messages"]]
    history = [message["content"][0]["text"] for message in blocking_host().run(again.history)]
    assert history == list(dict.fromkeys(seen))


def test_the_package_goes_back_to_a_snapshot_of_its_own_and_so_do_we(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    storage = FileStorage(tmp_path / "kept")
    ours(storage, "one")("first")
    peer.ask("open", **told)
    early = peer.ask("snapshot")["id"]
    late = peer.ask("say", prompt="second", replies=[[{"text": "two"}]])
    peer.ask("restore", id=early)
    branched = peer.ask("say", prompt="instead", replies=[[{"text": "three"}]])
    agent = ours(storage, "four")
    assert plain(agent.messages) == plain(branched["messages"])
    agent("fourth")
    back = ours(storage, "five", load_snapshot_id=early)
    assert plain(back.messages) == plain(late["messages"])[:2]
    back("fifth")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(back.messages)


def test_what_the_package_redacted_is_redacted_here(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    storage = FileStorage(tmp_path / "kept")
    ours(storage, "hello")("hi")
    peer.ask("open", **told)
    peer.ask("say", prompt="my secret is 123", replies=[[{"redact": "[redacted]"}, {"text": "I cannot help"}]])
    agent = ours(storage, "fine")
    assert plain(agent.messages)[2] == ("user", [{"text": "[redacted]"}])
    agent("go on")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)


def test_the_package_adds_while_our_session_is_open_and_nothing_is_lost(peer: Peer, tmp_path: Path) -> None:
    """It is taken in at the latest when our session is given up, behind what was said here meanwhile."""
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    storage = FileStorage(tmp_path / "kept")
    ours(storage, "zero")("start")
    with ours(storage, "one", "two") as agent:
        peer.ask("open", **told)
        peer.ask("say", prompt="between", replies=[[{"text": "added"}]])
        agent("first")
    texts = [one["content"][0]["text"] for one in ours(storage).messages]
    assert sorted(texts) == sorted(["start", "zero", "first", "one", "between", "added"])
    assert texts.index("one") == texts.index("first") + 1
    assert texts.index("added") == texts.index("between") + 1
    found = peer.ask("open", **told)
    assert [one["content"][0]["text"] for one in found["messages"]] == texts


@pytest.mark.parametrize("manager", ["null", ""])
def test_the_conversation_manager_is_named_as_the_package_wants_it(peer: Peer, tmp_path: Path, manager: str) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept", "manager": manager}
    storage = FileStorage(tmp_path / "kept")
    if manager:
        first = ours(storage, "hello", conversation_manager=NullConversationManager())
        first("hi")
        assert len(peer.ask("open", **told)["messages"]) == 2
    else:
        peer.ask("open", **told)
        peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]])
    agent = ours(storage, "ours", conversation_manager=NullConversationManager())
    agent.state.set("n", 1)
    agent("and now?")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert found["state"] == {"n": 1}


def test_the_system_prompt_goes_on_where_it_was_saved_and_ours_wins_where_there_is_one(
    peer: Peer, tmp_path: Path
) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    agent = ours(FileStorage(tmp_path / "kept"), "one")
    agent.system_prompt = "Be brief."
    agent("hi")
    peer.ask("open", **told)
    peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]])
    again = ours(FileStorage(tmp_path / "kept"), "two")
    assert again.system_prompt == "Be brief."
    again.system_prompt = "Be kind."
    again("hi")
    assert ours(FileStorage(tmp_path / "kept")).system_prompt == "Be kind."
