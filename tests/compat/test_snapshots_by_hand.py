"""Sessions with snapshots driven by hand: what programs of the SDK call on a session manager themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    FileStorage,
    InMemoryStorage,
    ScriptedModel,
    SnapshotSessionManager,
)
from repertory.errors import SessionBusy
from tests.app.orchestration.snapshot_shelf import SnapshotShelf

HI: Any = {"role": "user", "content": [{"text": "Hi"}]}
HELLO: Any = {"role": "assistant", "content": [{"text": "Hello"}]}


def agent(*replies: str, **options: Any) -> Agent:
    return Agent(model=ScriptedModel([*replies]), callback_handler=None, **options)


@pytest.fixture(params=["files", "memory", "own"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "files":
        return FileStorage(tmp_path / "kept")
    return InMemoryStorage() if request.param == "memory" else SnapshotShelf()


def texts(of: Agent) -> list[str]:
    return [str(message["content"][0]["text"]) for message in of.messages]


def test_an_agent_that_was_stored_by_hand_is_restored_by_hand(storage: Any) -> None:
    manager = SnapshotSessionManager("s", storage=storage)
    first = agent("Hello", state={"mood": "good"})
    manager.initialize(first)
    assert first.messages == []
    first("Hi")
    manager.sync_agent(first)
    second = agent()
    SnapshotSessionManager("s", storage=storage).initialize(second)
    assert texts(second) == ["Hi", "Hello"]
    assert second.state.get("mood") == "good"


def test_an_agent_that_has_the_manager_goes_on_with_what_was_stored_by_hand(storage: Any) -> None:
    SnapshotSessionManager("s", storage=storage).sync_agent(agent(messages=[HI, HELLO]))
    kept = agent("Fine", session_manager=SnapshotSessionManager("s", storage=storage))
    kept("How are you?")
    assert texts(kept) == ["Hi", "Hello", "How are you?", "Fine"]
    kept.shutdown()
    other = agent(messages=[*kept.messages, HI])
    SnapshotSessionManager("s", storage=storage).sync_agent(other)
    again = agent(session_manager=SnapshotSessionManager("s", storage=storage))
    assert texts(again) == ["Hi", "Hello", "How are you?", "Fine", "Hi"]


def test_a_redaction_by_hand_is_stored_at_once(storage: Any) -> None:
    manager = SnapshotSessionManager("s", storage=storage, save_latest_on="trigger")
    first = agent(messages=[HI])
    first.messages = [{"role": "user", "content": [{"text": "[redacted]"}]}]
    manager.redact_latest_message(first.messages[-1], first)
    second = agent()
    manager.initialize(second)
    assert texts(second) == ["[redacted]"]


def test_its_own_agent_is_edited_and_not_stored_twice(storage: Any) -> None:
    manager = SnapshotSessionManager("s", storage=storage)
    own = agent("Fine", session_manager=manager)
    manager.initialize(own)
    manager.append_message(HI, own)
    manager.append_message(HELLO, own)
    own("How are you?")
    manager.sync_agent(own)
    own.shutdown()
    assert texts(agent(session_manager=SnapshotSessionManager("s", storage=storage))) == [
        *("Hi", "Hello", "How are you?", "Fine")
    ]


def test_the_session_of_a_live_owner_is_not_written(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    with agent("Hello", session_manager=SnapshotSessionManager("s", storage=storage)) as owner:
        owner("Hi")
        with pytest.raises(SessionBusy):
            SnapshotSessionManager("s", storage=storage).sync_agent(agent(messages=[HI]))


def test_a_manager_without_a_storage_uses_that_of_the_agent() -> None:
    storage = InMemoryStorage()
    manager = SnapshotSessionManager("s")
    manager.initialize(agent(storage=storage))
    manager.sync_agent(agent(messages=[HI]))
    found = agent()
    SnapshotSessionManager("s", storage=storage).initialize(found)
    assert texts(found) == ["Hi"]


@pytest.mark.parametrize(
    ("when", "stored"), [("message", ["Hi", "Hello"]), ("invocation", ["Hi", "Hello"]), ("trigger", [])]
)
def test_as_a_hook_provider_it_stores_an_agent_when_it_was_told_to(when: Any, stored: list[str]) -> None:
    storage = InMemoryStorage()
    hooked = agent("Hello", hooks=[SnapshotSessionManager("s", storage=storage, save_latest_on=when)])
    hooked("Hi")
    found = agent()
    SnapshotSessionManager("s", storage=storage).initialize(found)
    assert texts(found) == stored


class Run:
    """A graph or swarm of another make."""

    id = "g"

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state

    def serialize_state(self) -> dict[str, Any] | None:
        return self.state

    def deserialize_state(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def test_a_run_that_was_stored_by_hand_is_restored_by_hand(storage: Any) -> None:
    manager = SnapshotSessionManager("s", storage=storage)
    nothing = Run()
    manager.initialize_multi_agent(nothing)
    assert nothing.state is None
    lists = ("completed_nodes", "failed_nodes", "interrupted_nodes", "next_nodes_to_execute", "execution_order")
    state = {"type": "graph", "id": "g", "status": "completed", "node_results": {}, "current_task": "Hi"}
    state |= {name: list[str]() for name in lists}
    manager.sync_multi_agent(Run(state))
    manager.sync_multi_agent(Run(state))
    found = Run()
    manager.initialize_multi_agent(found)
    assert found.state == state


class Counting(SnapshotSessionManager):
    """Keeps a number of its own, and has a method of its own in the place of ours."""

    def __init__(self, session_id: str, **options: Any) -> None:
        super().__init__(session_id, **options)
        self.stored = 0

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        super().sync_agent(agent)
        self.stored += 1


def test_a_subclass_may_have_attributes_and_methods_of_its_own(storage: Any) -> None:
    manager = Counting("s", storage=storage, save_latest_on="invocation")
    kept = agent("Hello", session_manager=manager)
    kept("Hi")
    assert manager.stored == 1
    found = agent()
    SnapshotSessionManager("s", storage=storage).initialize(found)
    assert texts(found) == ["Hi", "Hello"]
