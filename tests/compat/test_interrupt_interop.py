"""Turns that wait for a person, parked by us and gone on with by the released strands-agents package, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    BeforeToolCallEvent,
    FileSessionManager,
    FileStorage,
    ScriptedModel,
    SessionManager,
    ToolContext,
    tool,
)
from repertory.errors import InterruptNotFound
from tests.app.sessions.test_layout_interop import PYTHON, Peer, bucket_url, place, plain

__all__ = ["bucket_url", "place"]

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="NOT TESTED against strands-agents: `make peers` installs it",
    ),
]

WIPE = {"toolUse": {"toolUseId": "t1", "name": "wipe", "input": {"disk": "c"}}}
PAY = {"toolUse": {"toolUseId": "t2", "name": "pay", "input": {"amount": 5}}}
ADD = {"toolUse": {"toolUseId": "t3", "name": "add", "input": {"a": 1, "b": 2}}}
RESULTS = {"t1": "wiped c", "t2": "paid 5: yes", "t3": "3"}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


class Ours:
    """An agent of ours with the peer's tools, which counts what they do."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.done: list[str] = []

    def agent(self, *replies: Any) -> Agent:
        @tool
        def add(a: int, b: int) -> str:
            """Add two numbers."""
            self.done.append("add")
            return str(a + b)

        @tool
        def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount, when a person agrees."""
            said = tool_context.interrupt("approve", reason={"amount": amount})
            self.done.append("pay")
            return f"paid {amount}: {said}"

        @tool
        def wipe(disk: str) -> str:
            """Wipe a disk."""
            self.done.append("wipe")
            return f"wiped {disk}"

        def gate(event: BeforeToolCallEvent) -> None:
            if event.tool_use["name"] == "wipe" and event.interrupt("wipe", reason=event.tool_use["input"]) != "yes":
                event.cancel_tool = "not allowed"

        model = ScriptedModel(list(replies))
        agent = Agent(model, tools=[add, pay, wipe], callback_handler=None, session_manager=self.manager())
        agent.add_hook(gate)
        return agent


def answers(interrupts: Iterable[Any]) -> Any:
    ids = [one["id"] if isinstance(one, dict) else one.id for one in interrupts]
    return [{"interruptResponse": {"interruptId": each, "response": "yes"}} for each in ids]


def results(messages: Any) -> dict[str, str]:
    """Tool use id to the text of its result."""
    found = [block["toolResult"] for message in messages for block in message["content"] if "toolResult" in block]
    return {one["toolUseId"]: one["content"][0]["text"] for one in found}


def test_the_package_goes_on_with_a_turn_that_waits_here(peer: Peer, place: Any) -> None:
    manager, told = place
    ours = Ours(manager)
    asked = ours.agent([WIPE, PAY, ADD])("go")
    assert ours.done == ["add"]
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(ours.agent().messages)
    said = peer.ask("say", prompt=answers(asked.interrupts), replies=[[{"text": "done"}]])
    assert said["interrupts"] == []
    assert results(said["messages"]) == RESULTS
    again = ours.agent("ours")
    assert results(again.messages) == RESULTS
    assert plain(again.messages)[-1] == plain(said["messages"])[-1]
    assert again.interrupts == []
    again("and now?")
    assert ours.done == ["add"]
    assert peer.ask("open", **told)["messages"] is not None
    assert peer.ask("say", prompt="hello", replies=[[{"text": "hi"}]])["interrupts"] == []


def test_a_turn_that_waits_in_the_package_goes_on_here(peer: Peer, place: Any) -> None:
    manager, told = place
    ours = Ours(manager)
    peer.ask("open", **told)
    said = peer.ask("say", prompt="go", replies=[[WIPE, PAY, ADD]])
    agent = ours.agent("done")
    assert sorted(one.id for one in agent.interrupts) == sorted(one["id"] for one in said["interrupts"])
    (shown,) = [one.to_dict() for one in agent.interrupts if one.name == "approve"]
    (theirs,) = [one for one in said["interrupts"] if one["name"] == "approve"]
    assert shown == {**theirs, "tool": "pay", "input": {"amount": 5}, "session_id": shown["session_id"]}
    result = agent(answers(said["interrupts"]))
    assert (str(result), sorted(ours.done)) == ("done", ["pay", "wipe"])
    assert results(agent.messages) == RESULTS
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert peer.ask("say", prompt="and?", replies=[[{"text": "fine"}]])["interrupts"] == []


def test_both_sides_may_give_a_part_of_the_answers(peer: Peer, tmp_path: Path) -> None:
    """The package runs what has its answer at once; here everything waits for the last answer."""
    told = {"session": "s", "folder": str(tmp_path)}
    ours = Ours(lambda: FileSessionManager("s", tmp_path))
    asked = ours.agent([WIPE, PAY])("go")
    wipe, approve = sorted(asked.interrupts, key=lambda one: one.name, reverse=True)
    assert ours.agent()(answers([wipe])).interrupts == [approve]
    peer.ask("open", **told)
    said = peer.ask("say", prompt=answers([approve]), replies=[[{"text": "done"}]])
    assert results(said["messages"]) == {"t1": "wiped c", "t2": "paid 5: yes"}
    peer.ask("say", prompt="again", replies=[[{**WIPE, "toolUse": {**WIPE["toolUse"], "toolUseId": "t4"}}, PAY]])
    pending = ours.agent().interrupts
    half = peer.ask("say", prompt=answers([one for one in pending if one.name == "wipe"]), replies=[])
    assert [one["name"] for one in half["interrupts"]] == ["approve"]
    last = ours.agent("all done")
    assert [one.name for one in last.interrupts] == ["approve"]
    assert str(last(answers(last.interrupts))) == "all done"
    assert ours.done == ["pay"]
    assert results(last.messages) == {"t1": "wiped c", "t2": "paid 5: yes", "t4": "wiped c"}


def test_what_is_dropped_here_waits_no_longer_there(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path)}
    ours = Ours(lambda: FileSessionManager("s", tmp_path))
    ours.agent([WIPE])("go")
    agent = ours.agent("as you like")
    agent("never mind", drop_interrupts=True)
    found = peer.ask("open", **told)
    assert plain(found["messages"]) == plain(agent.messages)
    assert peer.ask("say", prompt="and?", replies=[[{"text": "fine"}]])["interrupts"] == []


def test_the_agents_document_is_spelled_as_the_package_spells_it(peer: Peer, tmp_path: Path) -> None:
    def state(folder: Path) -> Any:
        document = json.loads((folder / "session_s/agents/agent_default/agent.json").read_text())
        found = document["_internal_state"]["interrupt_state"]
        if "pending_tool_execution" in found:
            for name in ("tracking_id", "metadata"):
                found["pending_tool_execution"]["assistant_message"].pop(name, None)
        return found

    agent = Ours(lambda: FileSessionManager("s", tmp_path / "ours")).agent([ADD, PAY], "done")
    asked = agent("go")
    peer.ask("open", session="s", folder=str(tmp_path / "theirs"))
    peer.ask("say", prompt="go", replies=[[ADD, PAY]])
    assert state(tmp_path / "ours") == state(tmp_path / "theirs")
    agent(answers(asked.interrupts))
    peer.ask("say", prompt=answers(asked.interrupts), replies=[[{"text": "done"}]])
    assert state(tmp_path / "ours") == state(tmp_path / "theirs")


def test_snapshots_of_both_sides_hold_the_turn_that_waits(peer: Peer, tmp_path: Path) -> None:
    told = {"session": "s", "folder": str(tmp_path), "snapshots": "kept"}
    ours = Ours(lambda: SessionManager("s", storage=FileStorage(tmp_path / "kept")))
    asked = ours.agent([WIPE, PAY, ADD])("go")
    peer.ask("open", **told)
    said = peer.ask("say", prompt=answers(asked.interrupts), replies=[[{"text": "done"}]])
    assert (results(said["messages"]), ours.done) == (RESULTS, ["add"])
    peer.ask("say", prompt="again", replies=[[PAY]])
    agent = ours.agent("done")
    assert str(agent(answers(agent.interrupts))) == "done"
    assert ours.done == ["add", "pay"]


def test_answers_that_came_elsewhere_while_the_session_was_open_here_count(peer: Peer, tmp_path: Path) -> None:
    ours = Ours(lambda: FileSessionManager("s", tmp_path))
    with ours.agent([PAY], "well") as agent:
        asked = agent("go")
        peer.ask("open", session="s", folder=str(tmp_path))
        peer.ask("say", prompt=answers(asked.interrupts), replies=[[{"text": "done"}]])
        with pytest.raises(InterruptNotFound):
            agent(answers(asked.interrupts))
        assert str(agent("and you?")) == "well"
        assert results(agent.messages) == {"t2": "paid 5: yes"}
    assert ours.done == []
