"""The conversations that a service remembers while callers page through them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.requests import Request

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.service.http import stored as stored_module
from repertory.service.http.service import Caller, Service
from repertory.service.http.stored import StoredSessions

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def request(method: str, **query: object) -> Request:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    path = {"agent": "helper", "session": "ada"}
    scope = {"type": "http", "method": method, "path_params": path, "query_string": text.encode(), "headers": []}
    return Request(scope)


def remembered(stored: StoredSessions) -> list[Any]:
    return list(stored._paged)


@pytest.fixture
async def stored(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(stored_module, "PAGED_S", 0.1)
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["Fine."], loop=True)))
        await agent.session("ada").invoke("My number is 4711.")
        yield StoredSessions(Service(runtime), None)


async def test_a_conversation_that_nobody_reads_on_is_forgotten(stored: StoredSessions) -> None:
    answer = await stored.messages(request("GET", limit=1), Caller())
    assert b"4711" in answer.body
    while remembered(stored):  # noqa: ASYNC110 - nobody is told
        await anyio.sleep(0.01)
    again = await stored.messages(request("GET", limit=1, after=1), Caller())
    assert b"Fine." in again.body


async def test_an_erased_conversation_is_forgotten_with_it(
    stored: StoredSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_module, "PAGED_S", 1000.0)
    await stored.messages(request("GET", limit=1), Caller())
    assert remembered(stored)
    await stored.erase(request("DELETE"), Caller())
    assert remembered(stored) == []
