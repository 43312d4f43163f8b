"""Agents whose session is in AgentCore Memory: called from plain code, from both event loops, and in a `Runtime`."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, RetrievalConfig, Runtime, ScriptedModel, SlidingWindowConversationManager, tool
from repertory.bedrock.agentcore import (
    AgentCoreMemoryConfig,
    AgentCoreMemorySessionManager,
    AgentCoreMemorySessions,
)
from repertory.core.messages import text_of
from repertory.errors import Invalid, NotFound, SessionBusy
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import MemoryServer, agentcore_server

pytestmark = pytest.mark.real_time

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.fixture
def server(running: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    running.operations()
    return running


@pytest.fixture
def session_id() -> str:
    """A session for this test alone."""
    return f"session-{next(_numbers)}"


def manager(server: MemoryServer, session_id: str, **options: Any) -> AgentCoreMemorySessionManager:
    takeover = options.pop("takeover", False)
    config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id=session_id, actor_id=ACTOR, **options)
    return AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=server.url, takeover=takeover)


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent(placement: AgentCoreMemorySessionManager, *replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=placement, **options)


def texts(messages: Any) -> list[str]:
    return [text_of(message) for message in messages]


def test_plain_calls_go_on_where_the_last_process_stopped(server: MemoryServer, session_id: str) -> None:
    """What is restored is what was shown, tools, state and window included."""
    use = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}
    wanted: list[Any] = []
    for number in range(3):
        window = SlidingWindowConversationManager(window_size=6)
        it = agent(manager(server, session_id), use, f"sum {number}", f"answer {number}", conversation_manager=window)
        assert it.messages == wanted
        it(f"add {number}")
        it.state.set("number", number)
        it(f"say {number}")
        wanted = it.messages
        assert it.state.get("number") == number
    assert len(wanted) == 6
    last = agent(manager(server, session_id), conversation_manager=SlidingWindowConversationManager(window_size=6))
    assert last.messages == wanted
    assert last.state.get("number") == 2


@pytest.mark.anyio
async def test_calls_in_an_event_loop_do_the_same(server: MemoryServer, session_id: str) -> None:
    for number in range(2):
        it = agent(manager(server, session_id), f"one {number}", f"two {number}")
        await it.invoke_async(f"first {number}")
        async with it:
            async for _ in it.stream_async(f"second {number}"):
                pass
            assert len(await it.history()) == 4 * (number + 1)
    (rows, *_) = [event for event in server.memory.events(session_id) if len(event.fields["payload"]) == 4]
    assert texts([json.loads(text)["message"] for text in rows.texts[::2]]) == ["first 0", "one 0"]


@pytest.mark.anyio
async def test_a_runtime_keeps_its_sessions_there(server: MemoryServer, session_id: str) -> None:
    sessions = AgentCoreMemorySessions(MEMORY, ACTOR, region_name="us-east-1", endpoint_url=server.url)
    names = [f"{session_id}-{number}" for number in range(3)]
    for turn in range(2):
        async with Runtime(sessions=sessions) as runtime:
            hosted = runtime.agent(AgentSpec(name="support", model=ScriptedModel([f"reply {turn}"] * 3)))
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(hosted.session(name).invoke, f"hello {turn}")
            report = await runtime.drain()
        assert report.ok
    server.operations()
    async with Runtime(sessions=sessions) as runtime:
        hosted = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["reply 2"])))
        for name in names:
            assert texts(await hosted.session(name).history()) == ["hello 0", "reply 0", "hello 1", "reply 1"]
    store = sessions.open_store()
    found = {info.session_id: info for info in await store.sessions()}
    await store.aclose()
    assert [found[name].owner for name in names] == [None] * 3


@pytest.mark.anyio
async def test_a_plain_turn_of_an_active_session_is_one_event(server: MemoryServer, session_id: str) -> None:
    async with agent(manager(server, session_id), "one", "two", "three") as it:
        await it.invoke_async("first")
        server.operations()
        await it.invoke_async("second")
        assert server.operations().count("CreateEvent") == 1


def test_metadata_stand_beside_messages(server: MemoryServer, session_id: str) -> None:
    asked = itertools.count()
    placement = manager(
        server,
        session_id,
        default_metadata={"place": "New York", "team": {"stringValue": "support"}},
        metadata_provider=lambda: {"trace": f"t-{next(asked)}"},
    )
    it = agent(placement, "one", "two")
    it("first")
    it("second")
    found = [event.fields["metadata"] for event in server.memory.events(session_id)]
    beside = [
        {key: value["stringValue"] for key, value in each.items() if key in ("place", "team", "trace")}
        for each in found
    ]
    assert [each for each in beside if each] == [
        {"place": "New York", "team": "support", "trace": f"t-{number}"} for number in range(2)
    ]


def test_a_provider_of_metadata_that_fails_is_named(server: MemoryServer, session_id: str) -> None:
    def fail() -> dict[str, Any]:
        raise KeyError("trace")

    for provider, match in ((fail, "metadata_provider raised"), (lambda: {"place": "Zürich"}, "metadata are letters")):
        with pytest.raises(Invalid, match=match):
            agent(manager(server, session_id, metadata_provider=provider), "one")("first")


def test_a_memory_that_is_not_there_is_an_error_that_says_what_to_do(server: MemoryServer) -> None:
    config = AgentCoreMemoryConfig(memory_id="other-0123456789", session_id="s", actor_id=ACTOR)
    placement = AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=server.url)
    with pytest.raises(NotFound, match="check memory_id and region_name"):
        agent(placement, "one")("first")


HERE = Path(__file__).parents[3]
CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tests.bedrock.test_agentcore_sessions import ACTOR, MEMORY, agent
from repertory.bedrock.agentcore import AgentCoreMemoryConfig, AgentCoreMemorySessionManager
config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id=sys.argv[3], actor_id=ACTOR)
placement = AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=sys.argv[2])
with agent(placement, "one", "two") as it:
    it("first")
    print("said", flush=True)
    sys.stdin.read()
"""


def test_a_session_of_a_process_that_was_killed_is_taken_over(server: MemoryServer, session_id: str) -> None:
    command = [sys.executable, "-c", CHILD, str(HERE), server.url, session_id]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"said\n"
    with pytest.raises(SessionBusy):
        agent(manager(server, session_id), "never", busy="reject")("hello")
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    child.stdout.close()
    child.stdin.close()
    it = agent(manager(server, session_id, takeover=True), "two")
    assert texts(it.messages) == ["first", "one"]
    it("second")
    assert texts(agent(manager(server, session_id)).messages) == ["first", "one", "second", "two"]


# --------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"memory_id": "nothing"}, "a memory_id is"),
        ({"actor_id": "-x"}, "an actor_id is"),
        ({"actor_id": "x" * 256}, "an actor_id is"),
        ({"session_id": "a/b"}, "a session_id"),
        ({"context_tag": "no tag"}, "a context_tag is"),
        ({"filter_restored_tool_context": True}, "conversation manager"),
        ({"persistence_mode": "NONE"}, "leave session_manager out"),
        ({"default_metadata": {"stateType": "x"}}, "the session's own"),
        ({"default_metadata": {"place": "Zürich"}}, "metadata are letters"),
        ({"default_metadata": {f"k{number}": "x" for number in range(15)}}, "too many"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_change(options: dict[str, Any], match: str) -> None:
    fields: dict[str, Any] = {"memory_id": MEMORY, "session_id": "s", "actor_id": ACTOR, **options}
    with pytest.raises(Invalid, match=match):
        AgentCoreMemoryConfig(**fields)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 10, "flush_interval_seconds": 1.0, "async_mode": True, "persistence_mode": "FULL"},
        {"memory_id": f"arn:aws:bedrock-agentcore:us-east-1:123456789012:memory/{MEMORY}"},
        {"actor_id": "app:user/1", "context_tag": "context", "retrieval_config": {"/facts": RetrievalConfig(top_k=3)}},
        {"default_metadata": {f"k{number}": "x" for number in range(14)}},
    ],
)
def test_what_the_package_takes_is_taken(options: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"memory_id": MEMORY, "session_id": "s", "actor_id": ACTOR, **options}
    placement = AgentCoreMemorySessionManager(AgentCoreMemoryConfig(**fields))
    assert placement.session_id == "s"
    assert placement.sessions.key == AgentCoreMemorySessionManager(AgentCoreMemoryConfig(**fields)).sessions.key


def test_a_converter_or_a_foreign_configuration_is_refused() -> None:
    config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id="s", actor_id=ACTOR)
    with pytest.raises(Invalid, match="leave converter out"):
        AgentCoreMemorySessionManager(config, converter=object)
    with pytest.raises(Invalid, match=r"repertory\.AgentCoreMemoryConfig"):
        AgentCoreMemorySessionManager({"memory_id": MEMORY})  # type: ignore[arg-type]
