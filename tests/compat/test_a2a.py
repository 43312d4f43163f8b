"""Agents that are asked over A2A: ours by ours, ours by the SDK's, and the SDK's by ours, over loopback."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from repertory import Agent, FileSessionManager, ModelRetryStrategy, ScriptedModel, ToolContext, tool
from repertory.compat import a2a_agent
from repertory.compat.a2a_agent import A2AAgent, A2AClientError, A2AStreamEvent, make_a2a_client
from repertory.compat.a2a_server import A2AServer, StrandsA2AExecutor
from repertory.errors import Invalid, RepertoryError
from tests.app.agent.test_repeated_model_calls import FIFTY, Breaks, TriedModel
from tests.campaigns.campaign_pages import HostileServer
from tests.service.protocol_servers import price

PEERS = Path(__file__).parents[1] / "peers"
PYTHON = PEERS / "strands/bin/python"
needs_peer = pytest.mark.skipif(
    not list(PEERS.glob("strands/lib/*/site-packages/a2a")),
    reason="NOT TESTED against strands-agents: `make peers` installs it",
)
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(a2a|websockets|uvicorn).*"),
]


@contextmanager
def served(agent: Agent | None = None, path: str = "", **settings: Any) -> Iterator[str]:
    """The address of an agent that is served meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
        app = A2AServer(agent, http_url=url, **settings).to_starlette_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


def scripted(*answers: Any, **options: Any) -> Agent:
    described = {"name": "clerk", "description": "Answers.", "callback_handler": None}
    return Agent(ScriptedModel(list(answers)), **{**described, **options})


@tool
def order(item: str, context: ToolContext) -> str:
    """Order an item."""
    return f"{item}: {context.interrupt('approve', reason=item)}"


ORDERING = ({"toolUse": {"name": "order", "input": {"item": "tea"}}}, "ordered")


@pytest.mark.parametrize("compliant", [False, True])
def test_an_agent_is_asked_over_a2a(compliant: bool) -> None:
    agent = scripted("four", tools=[order])
    with served(agent, "/clerk", enable_a2a_compliant_streaming=compliant) as url:
        clerk = A2AAgent(url)
        result = clerk("2 + 2?")
        card = A2AServer(agent, http_url=url).public_agent_card
    assert (str(result), result.stop_reason, result.state) == ("four", "end_turn", {"a2a_task_state": "completed"})
    assert (clerk.name, clerk.description) == ("clerk", "Answers.")
    assert [each.id for each in card.skills] == ["order"]
    assert agent.messages == []


@pytest.mark.parametrize("compliant", [False, True])
def test_an_answer_that_is_begun_again_has_no_void_words(compliant: bool) -> None:
    model = TriedModel(Breaks("Let ", unsent=True), {"price": "tea"}, Breaks("It is", " fo", unsent=True), FIFTY)
    described: dict[str, Any] = {"name": "clerk", "description": "Answers.", "callback_handler": None}
    agent = Agent(model, tools=[price], retry_strategy=ModelRetryStrategy(transient_delay=0), **described)
    with served(agent, "/clerk", enable_a2a_compliant_streaming=compliant) as url:
        assert str(A2AAgent(url)("What is it?")) == "It is 42."


def test_a_card_has_the_tools_of_now_and_what_was_assigned() -> None:
    agent = scripted("four", tools=[])
    server = A2AServer(agent, http_url="http://127.0.0.1:9/clerk")
    assert server.agent_card_url == "http://127.0.0.1:9/clerk/"
    assert server.agent_skills == []
    agent.tool_registry.register_tool(order)
    (skill,) = server.agent_skills
    assert skill.id == "order"
    server.agent_skills, server.agent_card_url = [], "https://clerk.example/"
    assert (server.public_agent_card.skills, server.public_agent_card.url) == ([], "https://clerk.example/")


def test_an_event_of_an_agent_elsewhere_is_a_dictionary() -> None:
    event = A2AStreamEvent("sent")
    assert event.as_dict() == {"type": "a2a_stream", "event": "sent"}
    assert event.is_callback_event


@pytest.mark.anyio
async def test_what_an_agent_sends_is_streamed_before_its_answer() -> None:
    with served(scripted("four")) as url:
        events = [event async for event in A2AAgent(url).stream_async("2 + 2?")]
    assert {event["type"] for event in events[:-1]} == {"a2a_stream"}
    assert str(events[-1]["result"]) == "four"


def test_the_contexts_of_one_agent_see_nothing_of_each_other() -> None:
    agent = scripted("one", "two")
    with served(agent) as url:
        asked = [str(A2AAgent(url)(text)) for text in ("first", "second")]
    assert asked == ["one", "two"]
    model = agent.model
    assert isinstance(model, ScriptedModel)
    assert [call.messages for call in model.calls] == [
        [{"role": "user", "content": [{"text": text}]}] for text in ("first", "second")
    ]


def test_a_task_that_fails_says_why() -> None:
    with served(scripted(RuntimeError("no answer today"))) as url:
        result = A2AAgent(url)("2 + 2?")
    assert result.state == {"a2a_task_state": "failed"}
    assert "a model, a tool or a hook tried and failed" in str(result)


def test_a_question_to_a_person_ends_the_call_and_has_what_an_answer_needs() -> None:
    with served(agent_factory=lambda context: scripted(*ORDERING, tools=[order])) as url:
        result = A2AAgent(url)("tea, please")
    assert (result.stop_reason, result.state) == ("interrupt", {"a2a_task_state": "input-required"})
    assert [(each.name, each.reason) for each in result.interrupts] == [("approve", "tea")]


def asking(**given: str) -> dict[str, Any]:
    return {"toolUse": {"name": "a2a_client", "input": given}}


def test_a_tool_asks_allowed_agents_alone() -> None:
    with served(scripted("four")) as url:
        ask = make_a2a_client(allowed_endpoints=[url])
        model = ScriptedModel(
            [
                {"toolUse": {"name": "a2a_client", "input": {"operation": "discover", "endpoint": url}}},
                {
                    "toolUse": {
                        "name": "a2a_client",
                        "input": {"operation": "send_message", "endpoint": url, "message": "?"},
                    }
                },
                {"toolUse": {"name": "a2a_client", "input": {"operation": "discover", "endpoint": "http://other"}}},
                "done",
            ]
        )
        agent = Agent(model, tools=[ask], callback_handler=None)
        agent("go")
    said = [json.dumps(each["content"]) for each in agent.messages if "toolResult" in each["content"][0]]
    assert "clerk" in said[0]
    assert "four" in said[1]
    assert "not in the allowed endpoints list" in said[2]
    assert issubclass(A2AClientError, RuntimeError)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators of httpx, on trio
@pytest.mark.parametrize("kind", ["packed", "endless"])
async def test_an_agent_that_sends_too_much_is_not_read(
    kind: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2a_agent, "ANSWER_BYTES_MAX", 1_000_000)
    with (
        HostileServer(rng, 1).running() as url,
        pytest.raises(RepertoryError, match=r"answer is packed|answer is too large"),
    ):
        await A2AAgent(f"{url}/{kind}").get_agent_card()


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    stored = scripted(session_manager=FileSessionManager(session_id="s", storage_dir=str(tmp_path)))
    with pytest.raises(Invalid, match="exactly one of"):
        A2AServer()
    with pytest.raises(Invalid, match="session_manager is not supported"):
        A2AServer(stored)
    with pytest.raises(Invalid, match="max_contexts must be >= 1"):
        StrandsA2AExecutor(scripted(), max_contexts=0)
    with pytest.raises(Invalid, match="has a name and a description"):
        A2AServer(scripted(description=None)).to_starlette_app()


@needs_peer
def test_the_sdks_agent_asks_ours() -> None:
    with served(scripted("four", "five")) as url:
        command = [PYTHON, PEERS / "strands_a2a.py", "ask", url, "2 + 2?", "2 + 3?"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["message"]["content"][-1]["text"] for each in told] == ["four", "five"]
    assert {(each["state"], each["of"]) for each in told} == {("completed", "clerk")}


@needs_peer
def test_ours_asks_the_sdks_agent() -> None:
    environment = {**os.environ, "OTEL_SDK_DISABLED": "true"}
    command = [str(PYTHON), str(PEERS / "strands_a2a.py"), "serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        agent = A2AAgent(process.stdout.readline().strip())
        assert [str(agent(text)).strip() for text in ("first", "second")] == ["1 first", "1 second"]
        assert agent.name == "counter"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
