"""Session managers of programs: they see every message, restore what they kept, and never stop the event loop."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from typing import Any, cast

import pytest

from repertory import (
    Agent,
    FileSessionManager,
    FileStorage,
    GraphBuilder,
    HookFailed,
    InMemoryStorage,
    MessageAddedEvent,
    RepositorySessionManager,
    ScriptedModel,
    SessionAgent,
    SessionMessage,
    SessionRepository,
    SnapshotSessionManager,
    ToolContext,
    tool,
)
from repertory.compat.managers_by_hand import HookedSessionManager
from repertory.compat.programs import PreparedSessionManager
from repertory.core.messages import Message, text_of
from repertory.errors import Invalid, InvalidKey, NotReady, SessionBusy
from tests.plugins.guarded_model import GuardedModel, Verdict

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


class Shelf(HookedSessionManager[Any]):
    """Keeps sessions in dictionaries, and notes what it is asked and on which thread."""

    def __init__(self, session_id: str, kept: dict[str, Any]) -> None:
        self.session_id = session_id
        self.kept = kept
        self.threads: set[int] = set()
        self.fails = False

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        self._note()
        stored = self.kept.get(agent.agent_id)
        if stored is None:
            self.kept[agent.agent_id] = {"messages": list(agent.messages), "state": agent.state.get()}
            return
        agent.messages = list(stored["messages"])
        for name, value in stored["state"].items():
            agent.state.set(name, value)

    def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
        self._note()
        if self.fails:
            raise RuntimeError("the shelf is full")
        self.kept[agent.agent_id]["messages"].append(message)

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        self.kept[agent.agent_id]["messages"][-1] = redact_message

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        self._note()
        self.kept[agent.agent_id]["state"] = agent.state.get()

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        if source.id in self.kept:
            source.deserialize_state(self.kept[source.id])

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        self._note()
        self.kept[source.id] = source.serialize_state()

    def _note(self) -> None:
        self.threads.add(threading.get_ident())


class Redacting(Shelf):
    """Notes what it is told to replace the last prompt by."""

    def __init__(self, session_id: str, kept: dict[str, Any]) -> None:
        super().__init__(session_id, kept)
        self.redacted: list[str] = []

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        self.redacted.append(text_of(redact_message))
        messages = self.kept[agent.agent_id]["messages"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        messages[last] = redact_message


@tool
def double(number: int = 2) -> int:
    """Double it."""
    return 2 * number


def texts(messages: list[Message]) -> list[str]:
    return [text_of(message) for message in messages]


async def test_a_manager_of_a_program_sees_every_message_in_order_and_off_the_loop() -> None:
    manager = Shelf("s", {})
    model = ScriptedModel([[{"toolUse": {"toolUseId": "t1", "name": "double", "input": {"number": 2}}}], "It is 4."])
    agent = Agent(model, tools=[double], session_manager=manager, callback_handler=None)
    with pytest.raises(NotReady):
        _ = agent.messages
    await agent.invoke_async("2 * 2?")
    assert manager.kept["default"]["messages"] == agent.messages
    assert len(agent.messages) == 4
    assert threading.get_ident() not in manager.threads
    assert (agent.session_id, agent.session_manager, agent.kept_by) == ("s", None, manager)


async def test_it_restores_messages_and_state_in_the_next_process() -> None:
    kept: dict[str, Any] = {}
    agent = Agent(ScriptedModel("Hello, Ann."), session_manager=Shelf("s", kept), callback_handler=None)
    await agent.ready()
    agent.state.set("name", "Ann")
    await agent.invoke_async("I am Ann.")

    model = ScriptedModel("Ann.")
    again = Agent(model, session_manager=Shelf("s", kept), callback_handler=None)
    await again.invoke_async("Who am I?")
    assert texts(again.messages) == ["I am Ann.", "Hello, Ann.", "Who am I?", "Ann."]
    assert texts(kept["default"]["messages"]) == texts(again.messages)
    assert again.state.get("name") == "Ann"
    assert len(model.calls[0].messages) == 3


def test_outside_an_event_loop_it_restores_in_the_constructor() -> None:
    kept: dict[str, Any] = {}
    Agent(ScriptedModel("Yes."), session_manager=Shelf("s", kept), callback_handler=None)("Is it on?")
    again = Agent(ScriptedModel([]), session_manager=Shelf("s", kept), callback_handler=None)
    assert texts(again.messages) == ["Is it on?", "Yes."]


async def test_a_turn_fails_when_the_manager_cannot_store_its_message() -> None:
    manager = Shelf("s", {})
    agent = Agent(ScriptedModel("Yes."), session_manager=manager, callback_handler=None)
    await agent.ready()
    manager.fails = True
    with pytest.raises(HookFailed, match="the shelf is full"):
        await agent.invoke_async("Is it on?")
    assert manager.kept["default"]["messages"] == []


async def test_what_a_guardrail_took_back_is_handed_to_the_manager_and_stays_away() -> None:
    """With tools and state before it; the manager is told once, and of nothing else."""
    kept: dict[str, Any] = {}
    use = {"id": "t1", "name": "double"}
    model = GuardedModel(use, "It is 4.", Verdict(user="[redacted]"), "Fine.")
    manager = Redacting("s", kept)
    agent = Agent(model, tools=[double], session_manager=manager, callback_handler=None)
    await agent.invoke_async("2 * 2?")
    await agent.invoke_async("My PIN is 1234.")
    assert manager.redacted == ["[redacted]"]
    assert "1234" not in repr(kept["default"]["messages"])
    await agent.invoke_async("And now?")
    assert manager.redacted == ["[redacted]"]
    assert kept["default"]["messages"] == agent.messages

    again = Agent(GuardedModel("Yes."), session_manager=Redacting("s", kept), callback_handler=None)
    await again.invoke_async("Still there?")
    assert list(again.messages[:-2]) == list(agent.messages)
    assert texts(again.messages)[-6:-4] == ["[redacted]", "blocked"]


async def test_what_a_hook_leaves_of_a_prompt_is_handed_to_the_manager_as_well() -> None:
    manager = Redacting("s", {})

    def shorten(event: MessageAddedEvent) -> None:
        if event.message["role"] == "user":
            event.message["content"][:] = [{"text": "short"}]

    agent = Agent(ScriptedModel(["One.", "Two."]), session_manager=manager, hooks=[shorten], callback_handler=None)
    await agent.invoke_async("A long question.")
    await agent.invoke_async("A longer question.")
    assert manager.redacted == ["short", "short"]
    assert texts(manager.kept["default"]["messages"]) == ["short", "One.", "short", "Two."]


async def test_a_conversation_with_tool_uses_and_state_is_restored_and_goes_on() -> None:
    kept: dict[str, Any] = {}

    @tool(context=True)
    def count(number: int, tool_context: ToolContext) -> int:
        """Add it up."""
        total = (tool_context.agent.state.get("total") or 0) + number
        tool_context.agent.state.set("total", total)
        return total

    def asking(number: int, total: str) -> ScriptedModel:
        uses = [{"toolUse": {"toolUseId": f"t{number}", "name": "count", "input": {"number": number}}}]
        return ScriptedModel([uses, total])

    agent = Agent(asking(2, "2"), tools=[count], session_manager=Shelf("s", kept), callback_handler=None)
    await agent.invoke_async("Add 2.")
    model = asking(3, "5")
    again = Agent(model, tools=[count], session_manager=Shelf("s", kept), callback_handler=None)
    await again.ready()
    assert list(again.messages) == list(agent.messages)
    assert again.state.get("total") == 2
    await again.invoke_async("Add 3.")
    assert again.state.get("total") == kept["default"]["state"]["total"] == 5
    assert [message["role"] for message in again.messages] == ["user", "assistant"] * 4
    asked = [{"role": message["role"], "content": message["content"]} for message in agent.messages]
    assert list(model.calls[0].messages[:4]) == asked
    assert kept["default"]["messages"] == again.messages


async def test_append_message_finds_the_message_at_the_end_of_the_conversation() -> None:
    ends: list[bool] = []

    class Looking(Shelf):
        def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
            ends.append(agent.messages[-1] is message)
            super().append_message(message, agent, **kwargs)

    agent = Agent(ScriptedModel("Yes."), session_manager=Looking("s", {}), callback_handler=None)
    await agent.invoke_async("Is it on?")
    assert ends == [True, True]


async def test_it_keeps_the_run_of_a_graph() -> None:
    kept: dict[str, Any] = {}

    def graph(*replies: str) -> Any:
        builder = GraphBuilder()
        builder.add_node(Agent(ScriptedModel(replies), callback_handler=None), "writer")
        builder.set_graph_id("g")
        builder.set_session_manager(Shelf("s", kept))
        return builder.build()

    await graph("Done.").invoke_async("Write.")
    assert kept["g"]
    result = await graph("Done again.").invoke_async("Write more.")
    assert str(result.status.value) == "completed"


class Notes(SessionRepository):
    """A repository that keeps what `to_dict` gives."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def create_session(self, session: Any) -> Any:
        self.kept[session.session_id] = session
        return session

    def read_session(self, session_id: str) -> Any:
        return self.kept.get(session_id)

    def create_agent(self, session_id: str, session_agent: Any) -> None:
        self.kept[session_agent.agent_id, "agent"] = session_agent.to_dict()

    def read_agent(self, session_id: str, agent_id: str) -> Any:
        found = self.kept.get((agent_id, "agent"))
        return None if found is None else SessionAgent.from_dict(found)

    update_agent = create_agent

    def create_message(self, session_id: str, agent_id: str, session_message: Any) -> None:
        self.kept[agent_id, session_message.message_id] = session_message.to_dict()

    update_message = create_message

    def read_message(self, session_id: str, agent_id: str, message_id: int) -> Any:
        found = self.kept.get((agent_id, message_id))
        return None if found is None else SessionMessage.from_dict(found)

    def list_messages(self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0) -> Any:
        numbers = sorted(key[1] for key in self.kept if key[0] == agent_id and isinstance(key[1], int))
        return [self.read_message(session_id, agent_id, number) for number in numbers][offset:][:limit]


class Censored(PreparedSessionManager):
    """Changes what is stored."""

    def __init__(self, session_id: str, repository: SessionRepository) -> None:
        super().__init__(session_id=session_id, session_repository=repository)
        self.censored = 0

    def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
        self.censored += 1
        censored = {**message, "content": [{"text": text_of(message).replace("Ann", "***")}]}
        super().append_message(censored, agent, **kwargs)


async def test_a_repository_manager_with_a_method_of_its_own_is_asked() -> None:
    repository = Notes()
    manager = Censored("s", repository)
    agent = Agent(ScriptedModel("Hello, Ann."), session_manager=manager, callback_handler=None)
    await agent.invoke_async("I am Ann.")
    again = Agent(ScriptedModel("Who?"), session_manager=Censored("s", repository), callback_handler=None)
    await again.ready()
    assert texts(again.messages) == ["I am ***.", "Hello, ***."]
    assert manager.censored == 2


async def test_a_repository_manager_without_one_keeps_a_journal_in_it() -> None:
    repository = Notes()
    manager = PreparedSessionManager(session_id="s", session_repository=repository)
    agent = Agent(ScriptedModel("Hello."), session_manager=manager, callback_handler=None)
    await agent.invoke_async("I am Ann.")
    assert agent.session_manager is manager
    again = Agent(
        ScriptedModel("Ann."),
        session_manager=PreparedSessionManager("s", repository),
        callback_handler=None,
    )
    await again.invoke_async("Who am I?")
    assert texts(again.messages) == ["I am Ann.", "Hello.", "Who am I?", "Ann."]


def test_records_that_an_agent_has_stored_are_read_by_hand(tmp_path: Any) -> None:
    manager = FileSessionManager("s", str(tmp_path))
    agent = Agent(ScriptedModel("Hello."), session_manager=manager, callback_handler=None)
    agent("I am Ann.")
    agent.shutdown()
    started = FileSessionManager("other", str(tmp_path))
    assert [text_of(cast(Message, each.to_message())) for each in started.list_messages("s", "default")] == [
        "I am Ann.",
        "Hello.",
    ]
    manager.append_message(Message(role="user", content=[{"text": "By hand."}]), agent)
    other = Agent(ScriptedModel([]), session_manager=FileSessionManager("s", str(tmp_path)), callback_handler=None)
    assert texts(other.messages) == ["I am Ann.", "Hello.", "By hand."]


def test_the_modules_of_the_sdk_have_the_interface() -> None:
    manager = importlib.import_module("repertory.strands.session.session_manager")
    assert manager.SessionManager is HookedSessionManager
    assert issubclass(FileSessionManager, HookedSessionManager)


async def test_a_numbered_snapshot_is_taken_and_restored_by_hand(tmp_path: Any) -> None:
    manager = SnapshotSessionManager("s", storage=FileStorage(tmp_path), save_latest_on="trigger")
    agent = Agent(ScriptedModel(["One.", "Two."]), session_manager=manager, callback_handler=None)
    await agent.invoke_async("First?")
    assert await manager.restore_snapshot(agent) is False
    number = await manager.save_snapshot(agent)
    assert await manager.save_snapshot(agent, is_latest=True) is None
    await agent.invoke_async("Second?")
    assert [number] == await manager.list_snapshot_ids(agent) == ["1"]
    assert await manager.restore_snapshot(agent, snapshot_id=number) is True
    assert texts(agent.messages) == ["First?", "One."]
    with pytest.raises(Invalid, match="not a valid snapshot id"):
        await manager.restore_snapshot(agent, snapshot_id="../s")


async def test_bytes_are_kept_below_a_namespace_and_found_by_their_words(tmp_path: Any) -> None:
    for storage in (FileStorage(tmp_path), InMemoryStorage()):
        notes = storage.namespace("notes")
        await notes.write("theme.md", b"dark mode")
        await storage.write("other.md", b"dark mode")
        assert await storage.list("") == ["notes/theme.md", "other.md"]
        assert [found.key for found in await notes.search("the dark mode")] == ["theme.md"]
        await notes.delete("theme.md")
        assert await notes.read("theme.md") is None
        with pytest.raises(InvalidKey):
            await notes.write("../other.md", b"")


def test_records_are_not_written_into_a_session_of_another_process(tmp_path: Any) -> None:
    program = (
        "import sys, time\n"
        "from repertory import Agent, FileSessionManager, ScriptedModel\n"
        "manager = FileSessionManager('s', sys.argv[1])\n"
        "with Agent(ScriptedModel('Yes.'), session_manager=manager, callback_handler=None) as agent:\n"
        "    agent('Is it on?')\n"
        "    print('on', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    manager = FileSessionManager("s", str(tmp_path))
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"on\n"
        assert len(manager.list_messages("s", "default")) == 2
        with pytest.raises(SessionBusy):
            manager.create_agent("s", SessionAgent("a", {}, {}))
        (record,) = tmp_path.glob("**/owner")
        record.write_bytes(record.read_bytes().replace(b"held", b"hold"))  # Its lock still says that somebody lives.
        with pytest.raises(SessionBusy):
            manager.create_agent("s", SessionAgent("a", {}, {}))
        other.communicate()
    manager.create_agent("s", SessionAgent("a", {}, {}))
    with pytest.raises(Invalid):
        manager.read_agent("../s", "a")


def test_a_repository_by_hand_says_that_it_does_not_use_an_agents_storage() -> None:
    agent = Agent(ScriptedModel([]), storage=InMemoryStorage(), callback_handler=None)
    with pytest.warns(UserWarning, match="does not use it"):
        RepositorySessionManager("s", Notes()).initialize(agent)
