"""Agents over A2A, asked by the official client over loopback, on uvicorn and on Hypercorn with trio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    Message,
    MessageSendConfiguration,
    Part,
    Role,
    Task,
    TaskIdParams,
    TaskQueryParams,
    TaskState,
    TextPart,
)

from repertory import ScriptedModel
from repertory.asgi import Caller, bearer_tokens
from repertory.compat.a2a_agent import A2AAgent
from repertory.errors import ModelFailed
from tests.service.protocol_servers import ASKS, LOOKS, SERVERS, TEXT, Shop, Typing, served

pytestmark = pytest.mark.real_time
ACME, OTHER = "acme-secret-16-letters", "other-secret-16-letters"
TENANTS = bearer_tokens({ACME: Caller("acme", "ann"), OTHER: Caller("other", "bob")})


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def message(*parts: Any, task: str | None = None, context: str | None = None, name: str | None = None) -> Message:
    made = [Part(root=TextPart(text=part) if isinstance(part, str) else part) for part in parts]
    return Message(role=Role.user, message_id=name or str(uuid4()), parts=made, task_id=task, context_id=context)


@asynccontextmanager
async def client_of(url: str, key: str = "", *, streaming: bool = True) -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        card = await A2ACardResolver(http, f"{url}/a2a/helper").get_agent_card()
        yield ClientFactory(ClientConfig(streaming=streaming, httpx_client=http)).create(card)


async def told(client: Any, sent: Message, **options: Any) -> list[Any]:
    return [each async for each in client.send_message(sent, **options)]


def task_in(events: list[Any]) -> Task:
    task = events[-1][0]
    assert isinstance(task, Task)
    return task


def answer(task: Task) -> str:
    return "".join(part.root.text for artifact in task.artifacts or [] for part in artifact.parts)  # type: ignore[union-attr]


def run(url: str, work: Callable[[Any], Awaitable[None]], key: str = "", *, streaming: bool = True) -> None:
    async def main() -> None:
        async with client_of(url, key, streaming=streaming) as client:
            await work(client)

    anyio.run(main)


@pytest.mark.parametrize("streaming", [True, False])
def test_an_agent_is_asked(tmp_path: Path, server: str, streaming: bool) -> None:
    shop = Shop(tmp_path, LOOKS, "It costs 3.")

    async def work(client: Any) -> None:
        task = task_in(await told(client, message("Tea?")))
        assert (task.status.state, answer(task)) == (TaskState.completed, "It costs 3.")
        again = await client.get_task(TaskQueryParams(id=task.id))
        assert (again.status.state, answer(again)) == (TaskState.completed, "It costs 3.")
        assert again.context_id == task.context_id
        said = [part.root.text for each in again.history for part in each.parts]
        assert said == ["Tea?", "Let me see.", "It costs 3."]
        short = await client.get_task(TaskQueryParams(id=task.id, history_length=1))
        assert len(short.history) == 1

    with served(shop.app, server) as url:
        run(url, work, streaming=streaming)
        card = httpx.get(f"{url}/.well-known/agent-card.json").json()
    assert (card["name"], card["url"]) == ("helper", f"{url}/a2a/helper/")
    assert [skill["id"] for skill in card["skills"]] == ["order", "price"]


def test_our_own_client_asks_it(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, "four")
    with served(shop.app, server) as url:
        result = A2AAgent(f"{url}/a2a/helper")("2 + 2?")
    assert (str(result), result.state) == ("four", {"a2a_task_state": "completed"})


def test_a_context_is_a_session_and_a_message_counts_once(tmp_path: Path, server: str) -> None:
    shop = Shop(tmp_path, "one", "two")

    async def work(client: Any) -> None:
        sent = message("A", name="m1")
        first, again = [task_in(await told(client, sent)) for _ in range(2)]
        assert (first.id, answer(first)) == (again.id, answer(again))
        picture = FilePart(file=FileWithBytes(bytes="iVBORw0KGgo=", mime_type="image/png", name="a.png"))
        second = task_in(await told(client, message("B", picture, context=first.context_id)))
        assert (second.context_id, answer(second)) == (first.context_id, "two")
        assert second.id != first.id

    with served(shop.app, server) as url:
        run(url, work)
    assert shop.asked == 2
    assert [next(iter(block)) for block in shop.model.calls[1].messages[-1]["content"]] == ["text", "image"]
    assert len(shop.model.calls[1].messages) == 3


@pytest.mark.parametrize("by_data", [True, False])
def test_a_person_answers_in_the_task(tmp_path: Path, server: str, by_data: bool) -> None:
    shop = Shop(tmp_path, ASKS, "ordered")

    async def work(client: Any) -> None:
        task = task_in(await told(client, message("tea")))
        assert task.status.state is TaskState.input_required
        questions = task.status.message.parts[1].root.data["interrupts"]  # type: ignore[union-attr]
        assert [(each["name"], each["reason"]) for each in questions] == [("approve", "tea")]
        assert (await client.get_task(TaskQueryParams(id=task.id))).status.state is TaskState.input_required
        with pytest.raises(Exception, match="waits for input"):
            await told(client, message("yes", context=task.context_id))
        data = {"interruptResponse": {"interruptId": questions[0]["interruptId"], "response": "yes"}}
        sent = message(DataPart(data=data) if by_data else "yes", task=task.id, context=task.context_id)
        for _ in range(2):
            done = task_in(await told(client, sent))
            assert (done.id, done.status.state, answer(done)) == (task.id, TaskState.completed, "ordered")
        with pytest.raises(Exception, match="takes no messages"):
            await told(client, message("yes", task=task.id))

    with served(shop.app, server) as url:
        run(url, work)
    assert shop.asked == 2


def test_a_task_survives_its_client_and_the_process(tmp_path: Path, server: str) -> None:
    shop, found = Shop(tmp_path, model=Typing()), list[Task]()

    async def leave(client: Any) -> None:
        sending = client.send_message(message("Count."))
        async for task, update in sending:
            if update is not None:
                found.append(task)
                break
        await sending.aclose()
        last = [each async for each in client.resubscribe(TaskIdParams(id=found[0].id))][-1]
        assert (last[0].status.state, answer(last[0])) == (TaskState.completed, TEXT)

    async def come_back(client: Any) -> None:
        task = await client.get_task(TaskQueryParams(id=found[0].id))
        assert (task.status.state, answer(task)) == (TaskState.completed, TEXT)
        last = [each async for each in client.resubscribe(TaskIdParams(id=task.id))][-1]
        assert answer(last[0]) == TEXT

    with served(shop.app, server) as url:
        run(url, leave)
    assert shop.asked == 1
    later = Shop(tmp_path, "never said")
    with served(later.app, server) as url:
        run(url, come_back)
    assert later.asked == 0


def test_a_task_is_begun_without_waiting_and_cancelled(tmp_path: Path, server: str) -> None:
    shop, found = Shop(tmp_path, model=Typing(pause_s=0.3)), list[Task]()

    async def work(client: Any) -> None:
        config = MessageSendConfiguration(blocking=False)
        sent = message("Count.")
        client._config.polling = True
        task = task_in(await told(client, sent, configuration=config))
        assert task.status.state is TaskState.working
        assert (await client.cancel_task(TaskIdParams(id=task.id))).status.state is TaskState.canceled
        assert (await client.get_task(TaskQueryParams(id=task.id))).status.state is TaskState.canceled
        with pytest.raises(Exception, match="does not run"):
            await client.cancel_task(TaskIdParams(id=task.id))
        found.append(task)

    async def subscribe(client: Any) -> None:
        last = [each async for each in client.resubscribe(TaskIdParams(id=found[0].id))][-1]
        assert last[0].status.state is TaskState.canceled

    with served(shop.app, server) as url:
        run(url, work, streaming=False)
        run(url, subscribe)
    assert shop.asked == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_a_task_that_fails_says_so_and_goes_on_when_its_message_is_sent_again(tmp_path: Path, streaming: bool) -> None:
    shop = Shop(tmp_path, ModelFailed("no"), "fine")

    async def work(client: Any) -> None:
        sent = message("A")
        task = task_in(await told(client, sent))
        assert task.status.state is TaskState.failed
        assert (await client.get_task(TaskQueryParams(id=task.id))).status.state is TaskState.failed
        assert shop.asked == 1
        again = task_in(await told(client, sent))
        assert (again.id, answer(again)) == (task.id, "fine")

    with served(shop.app) as url:
        run(url, work, streaming=streaming)


def test_tenants_do_not_reach_each_others_tasks_and_contexts(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "secret", "other", authenticate=TENANTS)
    found: list[Task] = []

    async def mine(client: Any) -> None:
        found.append(task_in(await told(client, message("A", context="c1", name="m1"))))

    async def theirs(client: Any) -> None:
        task = found[0]
        for ask in (
            client.get_task(TaskQueryParams(id=task.id)),
            client.cancel_task(TaskIdParams(id=task.id)),
            told(client, message("B", task=task.id)),
        ):
            with pytest.raises(Exception, match="no such task"):
                await ask
        with pytest.raises(Exception, match="no such task"):
            [each async for each in client.resubscribe(TaskIdParams(id=task.id))]
        assert answer(task_in(await told(client, message("B", context="c1", name="m1")))) == "other"

    with served(shop.app) as url:
        run(url, mine, ACME)
        run(url, theirs, OTHER)
        assert httpx.get(f"{url}/a2a/helper/.well-known/agent-card.json").status_code == 401
    assert len(shop.model.calls[1].messages) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, -32600),
        ([], -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/dance"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/pushNotificationConfig/set"}, -32003),
        ({"jsonrpc": "2.0", "id": 1, "method": "agent/getAuthenticatedExtendedCard"}, -32007),
        ({"jsonrpc": "1.0", "id": 1, "method": "tasks/get"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "task_x"}}, -32001),
        ({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {}}, -32602),
        ({"jsonrpc": "2.0", "id": [], "method": "message/send", "params": {}}, -32600),
    ],
)
def test_wrong_requests_get_the_errors_of_the_protocol(tmp_path: Path, body: Any, code: int) -> None:
    shop = Shop(tmp_path, "one")
    with served(shop.app) as url:
        told = httpx.post(f"{url}/a2a/helper", json=body)
        assert (told.status_code, told.json()["error"]["code"]) == (200, code)
        asked = body.get("id") if isinstance(body, dict) else None
        assert told.json()["id"] == (asked if isinstance(asked, int) else None)
        assert httpx.post(f"{url}/a2a/nobody", json=body).status_code == 404
    assert shop.asked == 0


@pytest.mark.parametrize(
    "sent",
    [
        {"messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "x"}]},
        {"messageId": "m", "role": "user", "parts": []},
        {"messageId": "m", "role": "user", "parts": ["x"]},
        {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": " "}]},
        {"messageId": "m", "role": "user", "parts": [{"kind": "file", "file": {"bytes": "%"}}]},
        {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}], "contextId": "../x"},
        {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}], "contextId": 7},
        {"messageId": "", "role": "user", "parts": [{"kind": "text", "text": "x"}]},
    ],
)
def test_wrong_messages_are_refused_before_anything_runs(tmp_path: Path, sent: Any) -> None:
    shop = Shop(tmp_path, model=ScriptedModel(["one"]))
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": sent}}
    with served(shop.app) as url:
        told = httpx.post(f"{url}/a2a/helper", json=body).json()
    assert told["error"]["code"] == -32602, json.dumps(told)
    assert shop.asked == 0
