"""Graphs and swarms over HTTP: runs begun, read, left, answered and found again, by their tenants alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from repertory import Agent, AgentSpec, Graph, Model, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool
from repertory.asgi import Caller, asgi_app, bearer_tokens
from repertory.core.messages import Message

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ADA = {"authorization": "Bearer the-secret-of-ada-1"}
BOB = {"authorization": "Bearer the-secret-of-bob-2"}
AT = "/v1/orchestrators/team/sessions/s"


class Never(Model):
    """Does not answer."""

    async def stream(self, messages: Sequence[Message], *rest: Any, **more: Any) -> AsyncIterator[Any]:
        await anyio.sleep(3600)
        yield {}


def team(*models: Model) -> Graph:
    nodes = {f"node{n}": Agent(model, name=f"node{n}", callback_handler=None) for n, model in enumerate(models)}
    return Graph(nodes, id="team")


def two() -> Graph:
    return team(ScriptedModel(["one"], loop=True), ScriptedModel(["two"], loop=True))


def asking() -> Graph:
    @tool(idempotent=True)
    async def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('may I')}"

    model = ScriptedModel([{"toolUse": {"name": "pay", "input": {}}}, "done"])
    return Graph({"payer": Agent(model, name="payer", tools=[pay], callback_handler=None)}, id="team")


@asynccontextmanager
async def served(folder: Path, make: Any = two, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    runtime = Runtime(sessions=SQLiteSessions(folder / "a.db"))
    runtime.orchestrator("team", lambda _: make())
    runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["hi"], loop=True)))
    transport = httpx.ASGITransport(asgi_app(runtime, **options))  # type: ignore[arg-type]
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def events_in(text: str) -> list[tuple[str, str, Any]]:
    """Kind, id and data of each event."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    return [(block["event"], block["id"], json.loads(block["data"])) for block in blocks]


async def test_a_run_is_begun_told_and_found_again_by_its_token(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        assert (await client.get("/v1/orchestrators")).json() == {"orchestrators": ["team"]}
        for replayed in (None, True):
            answer = await client.post(f"{AT}/runs", json={"task": "go", "token": "t1"})
            told = answer.json()
            assert (answer.status_code, told["result"].get("replayed")) == (200, replayed)
            assert (told["result"]["status"], told["text"]) == ("completed", "node0: one\nnode1: two")
        assert (await client.get(f"{AT}/runs/t1")).json()["status"] == "over"
        later = await client.post(f"{AT}/runs", json={"task": "on"}, headers={"prefer": "respond-async"})
        assert later.status_code == 202
        assert (await client.get(later.headers["location"], params={"wait_s": 20})).json()["status"] == "over"
        assert (await client.post(f"{AT}/runs", json={})).status_code == 422  # There is nothing to go on with.
        for missing in (
            f"{AT}/runs/nobody's",
            AT.replace("/s", "/none") + "/interrupts",
            AT.replace("team", "x") + "/runs/t",
        ):
            assert (await client.get(missing)).status_code == 404
        for wrong in ({"tusk": "x"}, {"task": "x", "limits": {"turns": 1}}, {"task": "x", "busy": "steer"}):
            assert (await client.post(f"{AT}/runs", json=wrong)).status_code == 422


async def test_the_events_of_a_run_are_read_on_after_the_last_one_that_a_client_has(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        whole = events_in((await client.post(f"{AT}/runs", json={"task": "go", "token": "t", "stream": True})).text)
        kinds = [kind for kind, _, _ in whole if kind != "multiagent_node_stream"]
        assert kinds[0] == "multiagent_node_start"
        assert kinds[-2:] == ["multiagent_node_stop", "result"]
        pieces = [
            data["event"]["data"]
            for kind, _, data in whole
            if kind == "multiagent_node_stream" and "data" in data["event"]
        ]
        assert pieces == ["one", "two"]
        assert not any("event" in data.get("event", {}) for _, _, data in whole)
        again = events_in((await client.get(f"{AT}/runs/t/events")).text)
        assert [kind for kind, _, _ in again] == ["result"]
        ended = await client.get(f"{AT}/runs/t/events", headers={"last-event-id": whole[-1][1]})
        assert ended.status_code == 204


async def test_a_person_is_asked_and_answers_over_http(tmp_path: Path) -> None:
    async with served(tmp_path, asking) as client:
        asked = (await client.post(f"{AT}/runs", json={"task": "pay", "token": "t"})).json()
        assert asked["result"]["status"] == "interrupted"
        (question,) = (await client.get(f"{AT}/interrupts")).json()["interrupts"]
        assert (question["name"], question["tool"], question["session_id"]) == ("may I", "pay", "s")
        given = {"answers": [{"id": question["id"], "response": "yes"}]}
        answered = (await client.post(f"{AT}/interrupts", json=given)).json()
        assert (answered["token"], answered["result"]["status"]) == ("t", "completed")
        assert (await client.get(f"{AT}/interrupts")).json() == {"interrupts": []}


async def test_reading_goes_on_with_no_run_that_was_cut_short(tmp_path: Path) -> None:
    async with served(tmp_path, lambda: team(Never())) as client:
        cut = await client.post(f"{AT}/runs", json={"task": "go", "token": "t", "timeout_s": 0.1})
        assert cut.json()["result"]["status"] == "interrupted"
        for path in (f"{AT}/runs/t", f"{AT}/runs/t/events"):
            assert (await client.get(path)).status_code == 409
        assert (await client.post(f"{AT}/cancel")).status_code == 204
    async with served(tmp_path) as client:
        assert (await client.get(f"{AT}/runs/t")).status_code == 409
        on = await client.post(f"{AT}/runs", json={"task": "other", "resume": False})
        assert on.json()["result"]["status"] == "completed"


async def test_no_tenant_reaches_the_runs_of_another_and_chosen_agents_are_served_alone(tmp_path: Path) -> None:
    tokens = {"the-secret-of-ada-1": Caller(tenant="ada"), "the-secret-of-bob-2": Caller(tenant="bob")}
    async with served(tmp_path, authenticate=bearer_tokens(tokens)) as client:
        assert (await client.post(f"{AT}/runs", json={"task": "go"})).status_code == 401
        assert (await client.post(f"{AT}/runs", json={"task": "go", "token": "t"}, headers=ADA)).status_code == 200
        assert (await client.get(f"{AT}/runs/t", headers=ADA)).status_code == 200
        assert (await client.get(f"{AT}/runs/t", headers=BOB)).status_code == 404
        said = {"task": [{"document": {"name": "x", "format": "txt", "source": {"location": {"uri": "s3://a/b"}}}}]}
        assert (await client.post(f"{AT}/runs", json=said, headers=ADA)).status_code == 422
    runtime = Runtime()
    clerk = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["hi"])))
    runtime.orchestrator("team", lambda _: two())
    transport = httpx.ASGITransport(asgi_app(runtime, agents={"clerk": clerk}))
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/orchestrators")).json() == {"orchestrators": []}
        assert (await client.post(f"{AT}/runs", json={"task": "go"})).status_code == 404
