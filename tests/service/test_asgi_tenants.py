"""Tenants: no path, field, header or cursor of one reaches what is another one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, tool
from repertory.asgi import Caller, Problem, ServiceLimits, asgi_app, bearer_tokens
from repertory.errors import Invalid
from tests.service.asgi_client import ADA, AGENT, Client, events_in, serving

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

TOKENS = {name * 16: Caller(tenant=tenant) for name, tenant in (("a", "acme"), ("b", "Acme"), ("g", "globex~x"))}
TENANTS = [{"authorization": f"Bearer {token}"} for token in TOKENS]
ACME, OTHER, GLOBEX = TENANTS
SECRET = "the plan is to buy globex"


@tool
def ask_first(tool_context: Any) -> str:
    """Ask a person."""
    return str(tool_context.interrupt("sure?"))


@pytest.fixture
def place(tmp_path: Path) -> SQLiteSessions:
    return SQLiteSessions(tmp_path / "a.db")


def service(place: SQLiteSessions, **options: Any) -> Any:
    runtime = Runtime(sessions=place)
    replies = [f"I keep it: {SECRET}", {"toolUse": {"name": "ask_first", "input": {}}}]
    runtime.agent(AgentSpec(name="helper", model=ScriptedModel(replies, loop=True), tools=[ask_first]))
    return serving(runtime, authenticate=bearer_tokens(TOKENS), **options)


async def test_a_caller_who_is_not_known_gets_nothing_but_health(place: SQLiteSessions) -> None:
    async with service(place) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic " + "a" * 16}):
            refused = await client.get("/v1/agents", headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "a" * 16 not in refused.text
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/openapi.json")).status_code == 200


async def _everything(client: Client, headers: dict[str, str], names: dict[str, Any]) -> str:
    """What a caller gets who knows every name that there is, and puts it wherever something is named."""
    got: list[str] = []

    async def ask(method: str, path: str, body: Any = None, **more: str) -> None:
        answer = await client.request(method, path, json=body, headers={**headers, **more})
        got.append(f"{answer.status_code} {answer.text} {dict(answer.headers)}")

    session, token, offset = names["session"], names["token"], names["offset"]
    for one in names["ids"]:
        path = f"{AGENT}/sessions/{one}"
        for what in ("messages", "state", "pending", "interrupts", "timers", "snapshots", "snapshots/label"):
            await ask("GET", f"{path}/{what}")
        await ask("GET", f"{path}/turns/{token}")
        await ask("GET", f"{path}/turns/{token}/events")
        await ask("GET", f"{path}/turns/{token}/events", None, **{"last-event-id": offset})
        await ask("GET", f"{path}/turns/{token}/events?after={offset}")
        await ask("POST", f"{path}/interrupts", {"answers": [{"id": names["interrupt"], "response": "yes"}]})
        await ask("POST", f"{path}/rewind", {"to": "label"})
        await ask("POST", f"{path}/snapshots", {"label": "mine"})
        await ask("POST", f"{path}/forks", {"session": "mine"})
        await ask("DELETE", f"{path}/timers/timer")
        await ask("POST", f"{path}/cancel")
        await ask("DELETE", path)
    await ask("GET", f"{AGENT}/sessions")
    await ask("GET", f"{AGENT}/sessions?after=")
    await ask("GET", f"{AGENT}/sessions?after={session}")
    await ask("GET", "/v1/interrupts")
    return "\n".join(got)


async def test_who_knows_every_name_of_another_tenant_still_reaches_nothing_of_it(place: SQLiteSessions) -> None:
    async with service(place, limits=ServiceLimits(rate_per_s=float("inf"))) as client:
        body = {"prompt": "Remember it.", "token": "t", "stream": True}
        told = events_in((await client.post(f"{ADA}/turns", json=body, headers=ACME)).text)
        asked = (await client.post(f"{ADA}/turns", json={"prompt": "Do it."}, headers=ACME)).json()
        interrupt = asked["result"]["interrupts"][0]["id"]
        assert (await client.post(f"{ADA}/snapshots", json={"label": "label"}, headers=ACME)).status_code == 201
        timer = {"prompt": SECRET, "in_s": 1000, "id": "timer"}
        assert (await client.post(f"{ADA}/timers", json=timer, headers=ACME)).status_code == 201
        names = {
            "session": "ada",
            "token": "t",
            "offset": told[0].id,
            "interrupt": interrupt,
            "ids": ["ada", "acme~ada", "~ada", "~acme~ada", "%61cme~ada", "acme%7Eada", "Acme~ada", "..%2Facme~ada"],
        }
        for headers in (OTHER, GLOBEX):
            got = await _everything(client, headers, names)
            assert SECRET not in got
            assert interrupt not in got.replace(f'"interrupt": "{interrupt}"', "")
        (listed,) = (await client.get("/v1/interrupts", headers=ACME)).json()["questions"]
        assert (listed["session"], listed["agent"], listed["interrupt"]["id"]) == ("ada", "helper", interrupt)
        own = (await client.get(f"{ADA}/messages", headers=ACME)).json()["messages"]
        assert len(own) == 4
        assert SECRET in str(own)
        assert [one["id"] for one in (await client.get(f"{ADA}/interrupts", headers=ACME)).json()["interrupts"]] == [
            interrupt
        ]
        assert [one["label"] for one in (await client.get(f"{ADA}/snapshots", headers=ACME)).json()["snapshots"]] == [
            "label"
        ]
        assert len((await client.get(f"{ADA}/timers", headers=ACME)).json()["timers"]) == 1


async def test_the_same_id_and_token_are_another_conversation_for_each_tenant(place: SQLiteSessions) -> None:
    async with service(place) as client:
        for headers in TENANTS:
            body = {"prompt": "Remember it.", "token": "t"}
            assert (await client.post(f"{ADA}/turns", json=body, headers=headers)).status_code == 200
        for headers in TENANTS:
            assert len((await client.get(f"{ADA}/messages", headers=headers)).json()["messages"]) == 2
            listed = (await client.get(f"{AGENT}/sessions", headers=headers)).json()["sessions"]
            assert [one["session"] for one in listed] == ["ada"]
        assert (await client.delete(ADA, headers=ACME)).status_code == 200
        assert (await client.get(f"{ADA}/messages", headers=OTHER)).status_code == 200


async def test_a_fork_stays_with_its_tenant(place: SQLiteSessions) -> None:
    async with service(place) as client:
        await client.post(f"{ADA}/turns", json={"prompt": "Remember it."}, headers=ACME)
        made = await client.post(f"{ADA}/forks", json={"session": "Acme~ada"}, headers=ACME)
        assert made.status_code == 201
        assert (await client.get(f"{ADA}/messages", headers=OTHER)).status_code == 404
        assert (await client.get(f"{AGENT}/sessions/Acme~ada/messages", headers=ACME)).status_code == 200


async def test_one_tenant_that_asks_too_fast_holds_up_no_other(place: SQLiteSessions) -> None:
    async with service(place, limits=ServiceLimits(burst=2, rate_per_s=0.001)) as client:
        assert [(await client.get("/v1/agents", headers=ACME)).status_code for _ in range(3)] == [200, 200, 429]
        assert (await client.get("/v1/agents", headers=OTHER)).status_code == 200


async def test_who_calls_may_be_found_out_by_waiting_and_refused_with_a_reason(place: SQLiteSessions) -> None:
    async def authenticate(request: HTTPConnection) -> Caller | None:
        if request.headers.get("x-banned"):
            raise Problem(403, "this caller is banned")
        return Caller(tenant=request.headers.get("x-tenant", ""))

    runtime = Runtime(sessions=place)
    runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["hello"])))
    async with serving(runtime, authenticate=authenticate) as client:
        assert (await client.get("/v1/agents", headers={"x-tenant": "acme"})).status_code == 200
        banned = await client.get("/v1/agents", headers={"x-banned": "1"})
        assert (banned.status_code, banned.json()["detail"]) == (403, "this caller is banned")
        named = {"host": "evil.example", "x-tenant": "acme"}
        assert (await client.get("/v1/agents", headers=named)).status_code == 200
        assert (await client.get("/v1/agents")).status_code == 401


def test_a_short_token_and_one_memory_for_all_tenants_are_refused() -> None:
    with pytest.raises(Invalid, match="16 characters"):
        bearer_tokens({"short": Caller()})
    runtime = Runtime()
    with pytest.raises(Invalid, match="tenants would search"):
        asgi_app(runtime, authenticate=bearer_tokens(TOKENS), memory=object())  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="protocols are"):
        asgi_app(runtime, protocols=["soap"])
