"""Sessions that we and the released strands-agents package go on with in turn, each through its own session manager.

Needs an interpreter that has the package: `tests/peers/strands/bin/python`, or the one that REPERTORY_STRANDS_PYTHON
names (see tests/peers/strands-requirements.txt).
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from repertory import (
    Agent,
    FileSessionManager,
    NullConversationManager,
    S3SessionManager,
    ScriptedModel,
    SlidingWindowConversationManager,
    tool,
)
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.plugins.guarded_model import GuardedModel, Verdict

PEERS = Path(__file__).parents[2] / "peers"
PYTHON = Path(os.environ.get("REPERTORY_STRANDS_PYTHON") or PEERS / "strands/bin/python")

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="NOT TESTED against strands-agents: `make peers` installs it",
    ),
]

PNG = b"\x89PNG\r\n\x00\x01"


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Peer:
    """The released package in a process of its own."""

    def __init__(self) -> None:
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
        environment["OTEL_SDK_DISABLED"] = "true"
        command = [str(PYTHON), str(PEERS / "strands_peer.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, do: str, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


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
    """How both sides name the same sessions: our manager, and what the peer is to be told."""
    if request.param == "files":
        return in_folder(tmp_path)
    return in_bucket(request.getfixturevalue("bucket_url"), tmp_path, monkeypatch)


def in_folder(folder: Path) -> Any:
    return lambda: FileSessionManager("s", folder), {"session": "s", "folder": str(folder)}


def in_bucket(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    prefix = f"{folder.name}/"
    told = {"session": "s", "bucket": BUCKET, "prefix": prefix, "endpoint": url}

    def manager() -> S3SessionManager:
        return S3SessionManager("s", BUCKET, prefix, region_name="us-east-1", endpoint_url=url)

    return manager, told


def ours(manager: Any, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=manager(), **options)


def plain(messages: Any) -> list[tuple[str, Any]]:
    """Role and content, with bytes as the peer's answers have them."""
    return [(one["role"], _plain(one["content"])) for one in messages]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def test_either_side_goes_on_where_the_other_stopped(peer: Peer, place: Any) -> None:
    manager, told = place
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}}
    for number in range(3):
        agent = ours(manager, {"toolUse": {"name": "add", "input": {"a": 3, "b": number}}}, "sum", "seen")
        agent.state.set(f"ours-{number}", [number])
        agent("add something")
        agent([{"text": "look"}, {"image": {"format": "png", "source": {"bytes": PNG}}}])
        found = peer.ask("open", **told)
        assert plain(found["messages"]) == plain(agent.messages)
        assert found["state"] == agent.state.get()
        said = peer.ask("say", prompt="add", replies=[[use], [{"text": "three"}]], state={f"theirs-{number}": True})
        picture = {"image": {"format": "png", "source": {"bytes": {"base64": base64.b64encode(PNG).decode()}}}}
        said = peer.ask("say", prompt=[{"text": "look"}, picture], replies=[[{"text": "nice"}]])
        again = ours(manager)
        assert plain(again.messages) == plain(said["messages"])
        assert len(again.messages) == 12 * (number + 1)
        assert again.state.get(f"theirs-{number}") is True
    kept = {one["tracking_id"] for one in said["messages"]}
    assert len(kept) == len(said["messages"])


def test_a_session_that_the_package_began_is_gone_on_with(peer: Peer, place: Any) -> None:
    manager, told = place
    peer.ask("open", **told, window=4)
    for number in range(4):
        said = peer.ask("say", prompt=f"question {number}", replies=[[{"text": f"answer {number}"}]])
    agent = ours(manager, "ours")
    assert plain(agent.messages) == plain(said["messages"])
    assert len(agent.messages) == 4
    agent("and now?")
    found = peer.ask("open", **told, window=40)
    assert plain(found["messages"]) == plain(agent.messages)


def test_windows_on_both_sides_show_the_same(peer: Peer, place: Any, rng: random.Random) -> None:
    manager, told = place
    for number in range(4):
        window = SlidingWindowConversationManager(window_size=rng.choice([2, 4, 6]))
        replies = [f"ours {number} {turn}" for turn in range(rng.randrange(1, 4))]
        agent = ours(manager, *replies, conversation_manager=window)
        for reply in replies:
            agent(f"ask {reply}")
        found = peer.ask("open", **told, window=rng.choice([2, 4, 6]))
        assert plain(found["messages"]) == plain(agent.messages)
        for turn in range(rng.randrange(1, 4)):
            said = peer.ask("say", prompt=f"theirs {number} {turn}", replies=[[{"text": "yes"}]])
        assert plain(ours(manager, conversation_manager=window).messages) == plain(said["messages"])


def test_what_the_package_redacted_is_redacted_here(peer: Peer, place: Any) -> None:
    manager, told = place
    ours(manager, "hello")("hi")
    peer.ask("open", **told)
    peer.ask("say", prompt="my secret is 123", replies=[[{"redact": "[redacted]"}, {"text": "I cannot help"}]])
    agent = ours(manager, "fine")
    assert plain(agent.messages)[2] == ("user", [{"text": "[redacted]"}])
    agent("go on")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)


def test_what_the_package_redacted_by_hand_is_redacted_here(peer: Peer, tmp_path: Path) -> None:
    """Its record keeps the original beside the replacement; whoever reads it shows the replacement."""
    told = {"session": "s", "folder": str(tmp_path)}
    manager = lambda: FileSessionManager("s", tmp_path)  # noqa: E731
    peer.ask("open", **told)
    peer.ask("say", prompt="hi", replies=[[{"text": "the secret is sesame"}]])
    peer.ask("redact", text="[redacted]")
    agent = ours(manager, "fine")
    assert plain(agent.messages)[1] == ("assistant", [{"text": "[redacted]"}])
    agent("go on")
    assert "sesame" not in str(agent.model.calls[-1].messages)
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)


def test_what_was_redacted_here_is_redacted_for_the_package(peer: Peer, place: Any) -> None:
    """A prompt that was stored already, one that was not, and a tool result."""
    manager, told = place
    refused = Verdict(streamed="I cannot help", user="[redacted]")
    model = GuardedModel("hello", refused, {"id": "t1", "name": "secret"}, refused, "fine")

    @tool
    def secret() -> str:
        """Tell."""
        return "the secret is xylophone"

    agent = Agent(model, tools=[secret], callback_handler=None, session_manager=manager())
    for prompt in ("hi", "my secret is xylophone", "tell me", "thanks"):
        agent(prompt)
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert "xylophone" not in str(found)
    said = peer.ask("say", prompt="and now?", replies=[[{"text": "nothing"}]])
    assert plain(said["asked"])[:-1] == plain(agent.messages)
    assert plain(ours(manager).messages) == plain(said["messages"])
    if "folder" in told:
        bodies = [path.read_text() for path in Path(told["folder"]).rglob("message_*.json")]
        assert "xylophone" not in "".join(bodies)
        documents = [json.loads(body) for body in bodies]
        assert [one["message"] for one in documents if one["redact_message"]] == [
            one["redact_message"] for one in documents if one["redact_message"]
        ]
        assert len([one for one in documents if one["redact_message"]]) == 2


def test_a_session_that_was_begun_here_names_its_conversation_manager(peer: Peer, tmp_path: Path) -> None:
    """The package refuses a session whose conversation manager is another one than it names."""
    told = {"session": "s", "folder": str(tmp_path)}
    manager = lambda: FileSessionManager("s", tmp_path)  # noqa: E731
    agent = ours(manager, "one", "two", conversation_manager=NullConversationManager())
    agent("first")
    found = peer.ask("open", **told, manager="null")
    assert plain(found["messages"]) == plain(agent.messages)
    agent("second")
    assert plain(peer.ask("open", **told, manager="null")["messages"]) == plain(agent.messages)


def test_a_first_turn_that_is_cut_off_names_the_conversation_manager_that_is_in_use(peer: Peer, place: Any) -> None:
    manager, told = place

    class Dying(ScriptedModel):
        """While it is asked, the package opens what is stored: all that there would be if the process were killed."""

        def __init__(self, **options: Any) -> None:
            super().__init__(["ok"])
            self.options = options
            self.found: list[Any] = []

        def look(self) -> Any:
            """What the package finds, once it finds the last prompt."""
            try:
                found = peer.ask("open", **told, **self.options)
            except AssertionError:
                return None
            said = found["messages"]
            return found if said and said[-1]["role"] == "user" else None

        async def stream(self, *asked: Any, **options: Any) -> Any:
            with anyio.fail_after(30):
                while not (found := await anyio.to_thread.run_sync(self.look)):
                    await anyio.lowlevel.checkpoint()  # The prompt is committed while the model is asked.
            self.found.append(found)
            async for event in super().stream(*asked, **options):
                yield event

    model = Dying(manager="null")
    agent = Agent(
        model, callback_handler=None, session_manager=manager(), conversation_manager=NullConversationManager()
    )
    agent("hello")
    assert [one["content"] for one in model.found[0]["messages"]] == [[{"text": "hello"}]]
    model = Dying(window=9)
    agent = Agent(model, callback_handler=None, session_manager=manager(), conversation_manager=window_of(9))
    agent("again")
    assert [one["content"] for one in model.found[0]["messages"]] == [
        [{"text": text}] for text in ("hello", "ok", "again")
    ]


def window_of(size: int) -> SlidingWindowConversationManager:
    return SlidingWindowConversationManager(window_size=size)


def test_the_package_adds_while_our_session_is_open(peer: Peer, tmp_path: Path) -> None:
    """The owner's next turn meets the messages that were added, takes them in, and goes on behind them."""

    def manager() -> FileSessionManager:
        return FileSessionManager("s", tmp_path)

    with_agent = ours(manager, "one", "two", "three")
    with with_agent as agent:
        agent("first")
        peer.ask("open", session="s", folder=str(tmp_path))
        peer.ask("say", prompt="between", replies=[[{"text": "added"}]])
        assert str(agent("second")) == "two"
        agent("third")
        texts = [one["content"][0]["text"] for one in agent.messages]
    assert texts == ["first", "one", "between", "added", "second", "two", "third", "three"]
    found = peer.ask("open", session="s", folder=str(tmp_path))
    assert [one["content"][0]["text"] for one in found["messages"]] == texts


def test_another_conversation_manager_opens_what_it_wrote(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path), "manager": "null"}
    peer.ask("open", **told)
    peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]])
    agent = ours(lambda: FileSessionManager("s", tmp_path), "ours", conversation_manager=NullConversationManager())
    agent.state.set("n", 1)
    agent("and now?")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert found["state"] == {"n": 1}


@pytest.mark.parametrize("kind", ["agent.json", "message_2.json"])
def test_nothing_of_ours_is_in_the_packages_way(peer: Peer, tmp_path: Path, kind: str) -> None:
    """A session with rows beside its messages, and one that begins with nothing but a state."""
    manager = lambda: FileSessionManager("s", tmp_path)  # noqa: E731
    agent = ours(manager, [{"toolUse": {"name": "add", "input": {"a": n, "b": n}}} for n in range(3)], "done")
    if kind == "agent.json":
        agent.state.set("n", 1)
        with agent:
            pass
    else:
        agent("add them all")
    found = peer.ask("open", session="s", folder=str(tmp_path))
    assert plain(found["messages"]) == plain(agent.messages)


LOOKALIKES = {
    "no base64": {"__bytes_encoded__": True, "data": "not base64!"},
    "base64": {"__bytes_encoded__": True, "data": "aGk="},
    "number": {"__bytes_encoded__": True, "data": 5},
    "more": {"__bytes_encoded__": True, "data": "aGk=", "more": [{"__bytes_encoded__": True, "data": "?"}]},
}
"""What the package takes for bytes, and is none."""


def test_what_looks_like_bytes_is_what_it_says_on_both_sides(peer: Peer, place: Any) -> None:
    manager, told = place
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": LOOKALIKES}}
    result = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"json": LOOKALIKES}]}}
    picture = {"image": {"format": "png", "source": {"bytes": PNG}}}
    agent = ours(manager, "noted", "seen")
    agent.state.set("kept", LOOKALIKES)
    agent(
        [
            {"role": "user", "content": [{"text": "?"}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    )  # type: ignore[list-item]
    agent([picture])  # type: ignore[list-item]
    assert plain(ours(manager).messages) == plain(agent.messages)
    assert json.dumps(ours(manager).state.get()) == json.dumps({"kept": LOOKALIKES})
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert found["state"] == {"kept": LOOKALIKES}
    said = peer.ask("say", prompt="go on", replies=[[{"text": "yes"}]], state={"theirs": 1})
    again = ours(manager, "fine")
    assert plain(again.messages) == plain(said["messages"])
    assert again.state.get() == {"kept": LOOKALIKES, "theirs": 1}


def test_what_the_package_cannot_read_any_more_opens_here(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path)}
    peer.ask("open", **told)
    peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]], state={"kept": LOOKALIKES["no base64"]})
    with pytest.raises(AssertionError, match=r"Incorrect padding|Invalid base64"):
        peer.ask("open", **told)
    agent = ours(lambda: FileSessionManager("s", tmp_path), "fine")
    assert agent.state.get() == {"kept": LOOKALIKES["no base64"]}
    agent("and now?")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
