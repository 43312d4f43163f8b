"""Which places get what a program sends to an agent over A2A: honest and hostile cards, over loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory

from repertory import Agent, ScriptedModel
from repertory.compat import a2a_agent
from repertory.compat.a2a_agent import A2AAgent, make_a2a_client
from repertory.errors import Failed, RepertoryError, TooLarge
from tests.backends.recorded_http import Answer, Heard, RecordedServer, recorded_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    # httpx leaves its generators when an answer is not read to its end.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

TOKEN, PROMPT = "the-token-of-the-program", "what nobody else may read"
JSON = {"content-type": "application/json"}


def card(url: str, **more: object) -> Answer:
    about = {"name": "clerk", "description": "Answers.", "version": "1", "skills": [], "capabilities": {}, "url": url}
    return 200, JSON, json.dumps({**about, "defaultInputModes": [], "defaultOutputModes": [], **more}).encode()


def said(heard: Heard, text: str) -> Answer:
    message = {"kind": "message", "messageId": "1", "role": "agent", "parts": [{"kind": "text", "text": text}]}
    asked = json.loads(heard.body)
    return 200, JSON, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": message}).encode()


@contextmanager
def clerk(url: str | None = None, **more: object) -> Iterator[RecordedServer]:
    """An agent whose card leads there, or to itself."""
    with recorded_server() as server:
        server.answer = lambda heard: card(url or server.url, **more) if heard.method == "GET" else said(heard, "four")
        yield server


async def told_by_the_tool(url: str, config: ClientConfig) -> str:
    """What a model is told that asks the agent."""
    use = {"name": "a2a_client", "input": {"operation": "send_message", "endpoint": url, "message": PROMPT}}
    tool = make_a2a_client(allowed_endpoints=[(url, config)])
    agent = Agent(ScriptedModel([{"toolUse": use}, "done"]), tools=[tool], callback_handler=None)
    await agent.invoke_async("Ask the clerk.")
    return str(agent.messages[2]["content"])


@asynccontextmanager
async def signing(**settings: object) -> AsyncGenerator[ClientConfig]:
    async with httpx.AsyncClient(headers={"x-api-key": TOKEN}, follow_redirects=True) as client:
        yield ClientConfig(httpx_client=client, streaming=False, **settings)  # type: ignore[arg-type]


async def test_the_token_goes_to_the_origin_that_the_program_names() -> None:
    async with signing() as config:
        with clerk() as server:
            assert str(await A2AAgent(server.url, client_config=config).invoke_async(PROMPT)) == "four"
            by_name = server.url.replace("127.0.0.1", "localhost")
            assert str(await A2AAgent(by_name, client_config=config).invoke_async(PROMPT)) == "four"
            assert len(server.carried(TOKEN)) == 4


@pytest.mark.parametrize("way", ["config", "factory", "tool"])
async def test_a_card_that_leads_to_another_origin_gets_nothing_sent_there(way: str) -> None:
    async with signing() as config:
        with clerk() as foreign, clerk(foreign.url) as server:
            if way == "tool":
                assert "leads to another origin" in await told_by_the_tool(server.url, config)
            else:
                made = {"client_config": config} if way == "config" else {"a2a_client_factory": ClientFactory(config)}
                with pytest.raises(Failed, match="leads to another origin") as met:
                    await A2AAgent(server.url, **made).invoke_async(PROMPT)  # type: ignore[arg-type]
                assert met.value.fields["to"] == foreign.url
            assert foreign.heard == []


async def test_another_origin_that_the_program_allows_is_asked() -> None:
    async with signing() as config:
        with clerk() as other, clerk(other.url) as server:
            agent = A2AAgent(server.url, client_config=config, allowed_origins=[other.url])
            assert str(await agent.invoke_async(PROMPT)) == "four"
            assert other.carried(TOKEN)


async def test_an_interface_elsewhere_is_not_used_though_the_client_prefers_it() -> None:
    async with signing(supported_transports=["HTTP+JSON", "JSONRPC"], use_client_preference=True) as config:
        with clerk() as foreign:
            more = [{"transport": "HTTP+JSON", "url": foreign.url}]
            with clerk(additionalInterfaces=more) as server:
                assert str(await A2AAgent(server.url, client_config=config).invoke_async(PROMPT)) == "four"
                assert foreign.heard == []


@pytest.mark.parametrize("when", ["GET", "POST"])
async def test_no_redirect_is_followed(when: str) -> None:
    async with signing() as config:
        with clerk() as foreign, clerk() as server:
            honest = server.answer

            def answer(heard: Heard) -> Answer:
                away: Mapping[str, str] = {"location": f"{foreign.url}{heard.path}"}
                return (307, away, b"") if heard.method == when else honest(heard)

            server.answer = answer
            assert "307" in await told_by_the_tool(server.url, config)
            assert foreign.heard == []


@pytest.mark.parametrize("when", ["GET", "POST"])
async def test_an_answer_is_read_up_to_its_bound(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_agent, "ANSWER_BYTES_MAX", 10_000)
    with clerk() as server:
        honest = server.answer
        server.answer = lambda heard: (200, JSON, b"[" * 20_000) if heard.method == when else honest(heard)
        with pytest.raises(TooLarge, match="answer is too large to be read"):
            await A2AAgent(server.url).invoke_async(PROMPT)


async def test_a_compressed_answer_is_refused() -> None:
    with clerk() as server:
        server.answer = lambda heard: (200, {**JSON, "content-encoding": "gzip"}, b"")
        with pytest.raises(RepertoryError, match="answer is packed"):
            await A2AAgent(server.url).invoke_async(PROMPT)
        assert server.heard[0].headers["accept-encoding"] == "identity"
