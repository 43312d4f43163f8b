"""Sessions in AgentCore Memory that we and the released bedrock-agentcore package go on with in turn.

Needs an interpreter that has the package beside strands-agents: `tests/peers/strands/bin/python`, or the one that
REPERTORY_STRANDS_PYTHON names.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from repertory import NullConversationManager, SlidingWindowConversationManager
from repertory.bedrock.agentcore import AgentCoreMemoryConfig, AgentCoreMemorySessionManager
from tests.app.sessions.test_layout_interop import PNG, PYTHON, Peer, ours, plain
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import MemoryServer, agentcore_server
from tests.compat.test_interrupt_interop import ADD, PAY, RESULTS, WIPE, Ours, answers, results

INSTALLED = any(PYTHON.parents[1].glob("lib/python*/site-packages/bedrock_agentcore"))

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not INSTALLED, reason="NOT TESTED against bedrock-agentcore, which is not in tests/peers/strands"
    ),
]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.fixture
def place(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How both sides name the same session: our manager, and what the peer is to be told."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    session_id = f"session-{next(_numbers)}"
    told = {"memory": MEMORY, "session": session_id, "actor": ACTOR, "endpoint": server.url}
    config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id=session_id, actor_id=ACTOR)

    def manager() -> AgentCoreMemorySessionManager:
        return AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=server.url)

    return manager, told


def texts(messages: Any) -> list[str]:
    return [one["content"][0]["text"] for one in messages]


@pytest.mark.parametrize("batch", [1, 100])
def test_either_side_goes_on_where_the_other_stopped(peer: Peer, place: Any, batch: int) -> None:
    manager, told = place
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}}
    for number in range(2):
        agent = ours(manager, {"toolUse": {"name": "add", "input": {"a": 3, "b": number}}}, "sum", "seen")
        agent.state.set(f"ours-{number}", [number])
        agent("add something")
        agent([{"text": "look"}, {"image": {"format": "png", "source": {"bytes": PNG}}}])
        found = peer.ask("open", **told, batch=batch)
        assert plain(found["messages"]) == plain(agent.messages)
        assert found["state"] == agent.state.get()
        said = peer.ask("say", prompt="add", replies=[[use], [{"text": "three"}]], state={f"theirs-{number}": True})
        picture = {"image": {"format": "png", "source": {"bytes": {"base64": base64.b64encode(PNG).decode()}}}}
        said = peer.ask("say", prompt=[{"text": "look"}, picture], replies=[[{"text": "nice"}]])
        again = ours(manager)
        assert plain(again.messages) == plain(said["messages"])
        assert len(again.messages) == 12 * (number + 1)
        assert again.state.get(f"theirs-{number}") is True


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
    for number in range(3):
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
    assert ("user", [{"text": "[redacted]"}]) in plain(agent.messages)
    agent("go on")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)


def test_the_package_adds_while_our_session_is_open(peer: Peer, place: Any) -> None:
    """The owner's next turn takes in what was added, and goes on behind it."""
    manager, told = place
    with ours(manager, "one", "two", "three") as agent:
        agent("first")
        peer.ask("open", **told)
        peer.ask("say", prompt="between", replies=[[{"text": "added"}]])
        anyio.run(anyio.sleep, 1.1)  # A commit counts as a look for a second.
        assert str(agent("second")) == "two"
        agent("third")
        said = texts(agent.messages)
    assert said == ["first", "one", "between", "added", "second", "two", "third", "three"]
    assert texts(peer.ask("open", **told)["messages"]) == said


def test_another_conversation_manager_opens_what_it_wrote(peer: Peer, place: Any) -> None:
    manager, told = place
    peer.ask("open", **told, manager="null")
    peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]])
    agent = ours(manager, "ours", conversation_manager=NullConversationManager())
    agent.state.set("n", 1)
    agent("and now?")
    found = peer.ask("open", **told, manager="null")
    assert plain(found["messages"]) == plain(agent.messages)
    assert found["state"] == {"n": 1}


def test_nothing_of_ours_is_in_the_packages_way(peer: Peer, place: Any) -> None:
    """Rows beside messages, rows without one, a message too long for a text, and a state before any message."""
    manager, told = place
    agent = ours(
        manager, [{"toolUse": {"name": "add", "input": {"a": n, "b": n}}} for n in range(3)], "done", "x" * 120_000
    )
    agent.state.set("n", 1)
    with agent:
        pass
    assert peer.ask("open", **told)["state"] == {"n": 1}
    agent("add them all")
    agent("say much")
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    said = peer.ask("say", prompt="y" * 120_000, replies=[[{"text": "thanks"}]])
    assert plain(ours(manager).messages) == plain(said["messages"])


def test_both_write_the_same_items(peer: Peer, place: Any, server: MemoryServer) -> None:
    """Field by field, the records of messages, agents and sessions are the package's own."""
    manager, told = place
    ours(manager, "hello")("hi")
    mine = server.memory.events(told["session"])
    theirs_told = {**told, "session": f"{told['session']}-theirs"}
    peer.ask("open", **theirs_told)
    peer.ask("say", prompt="hi", replies=[[{"text": "hello"}]])
    theirs = server.memory.events(theirs_told["session"])
    for kind in ("SESSION", "AGENT"):
        assert _record(mine, kind).keys() - {"repertory"} == _record(theirs, kind).keys()
    for said, wanted in zip(_said(mine), _said(theirs), strict=True):
        assert said[1] == wanted[1]
        assert said[0].keys() == wanted[0].keys()
        assert said[0]["message"]["content"] == wanted[0]["message"]["content"]
        assert said[0]["message_id"] == wanted[0]["message_id"]


def _record(events: Any, kind: str) -> dict[str, Any]:
    found = [
        event for event in events if event.fields.get("metadata", {}).get("stateType", {}).get("stringValue") == kind
    ]
    return json.loads(found[-1].fields["payload"][-1]["blob"])


def _said(events: Any) -> list[tuple[dict[str, Any], str]]:
    return [
        (json.loads(item["conversational"]["content"]["text"]), item["conversational"]["role"])
        for event in events
        for item in event.fields["payload"]
        if "conversational" in item
    ]


def test_the_package_goes_on_with_a_turn_that_waits_here(peer: Peer, place: Any) -> None:
    manager, told = place
    asking = Ours(manager)
    asked = asking.agent([WIPE, PAY, ADD])("go")
    assert asking.done == ["add"]
    peer.ask("open", **told)
    said = peer.ask("say", prompt=answers(asked.interrupts), replies=[[{"text": "done"}]])
    assert said["interrupts"] == []
    assert results(said["messages"]) == RESULTS
    again = asking.agent("ours")
    assert results(again.messages) == RESULTS
    assert again.interrupts == []
    again("and now?")
    peer.ask("open", **told)
    assert peer.ask("say", prompt="hello", replies=[[{"text": "hi"}]])["interrupts"] == []


def test_a_turn_that_waits_at_the_package_is_gone_on_with_here(peer: Peer, place: Any) -> None:
    manager, told = place
    peer.ask("open", **told)
    said = peer.ask("say", prompt="go", replies=[[WIPE, PAY, ADD]])
    asking = Ours(manager)
    agent = asking.agent("done")
    assert sorted(one.id for one in agent.interrupts) == sorted(one["id"] for one in said["interrupts"])
    agent(answers(said["interrupts"]))
    assert results(agent.messages) == RESULTS
    peer.ask("open", **told)
    assert peer.ask("say", prompt="and?", replies=[[{"text": "fine"}]])["interrupts"] == []
