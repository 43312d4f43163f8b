"""One protocol under two names: the official client meets the same of an agent of a runtime and of an `A2AServer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import DataPart, TaskState

from repertory import Agent, ScriptedModel
from tests.compat.test_a2a import served as served_by_the_sdk
from tests.compat.test_a2a_protocol import answer, message, task_in, told
from tests.service.protocol_servers import ASKS, LOOKS, Shop, order, price, served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(a2a|websockets|uvicorn).*"),
]


@pytest.fixture
def anyio_backend() -> str:
    """The client is httpx on loopback; one event loop is enough."""
    return "asyncio"


@contextmanager
def _address(face: str, tmp_path: Path, *replies: Any) -> Iterator[str]:
    if face == "service":
        with served(Shop(tmp_path, *replies).app) as url:
            yield f"{url}/a2a/helper"
        return

    def make(context: str) -> Agent:
        model = ScriptedModel([*replies], loop=True)
        return Agent(model, tools=[order, price], name="helper", description="Helps.", callback_handler=None)

    with served_by_the_sdk(agent_factory=make, enable_a2a_compliant_streaming=True) as url:
        yield url


@pytest.fixture(params=["service", "A2AServer"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def _asking(url: str) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


async def test_a_turn_is_a_task_whose_artifact_is_closed_once(tmp_path: Path, face: str) -> None:
    with _address(face, tmp_path, LOOKS, "It costs 3.") as url:
        async with _asking(url) as client:
            events = await told(client, message("Tea?"))
    pieces = [update for _, update in events if update is not None and update.kind == "artifact-update"]
    last = events[-1][1]
    assert (last.status.state, last.final) == (TaskState.completed, True)
    assert [bool(piece.last_chunk) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len({piece.artifact.artifact_id for piece in pieces}) == 1
    # The SDK's artifact has the text of all steps.
    assert answer(task_in(events)) == ("It costs 3." if face == "service" else "Let me see.It costs 3.")


@pytest.mark.parametrize("by_data", [True, False])
async def test_a_question_ends_the_stream_and_the_task_takes_its_answer(
    tmp_path: Path, face: str, by_data: bool
) -> None:
    with _address(face, tmp_path, ASKS, "ordered") as url:
        async with _asking(url) as client:
            events = await told(client, message("tea"))
            task, last = events[-1]
            assert (last.status.state, last.final) == (TaskState.input_required, True)
            words, data = task.status.message.parts
            (asked,) = data.root.data["interrupts"]
            assert (words.root.text, asked["name"], asked["reason"]) == (
                "Input is needed. approve: tea",
                "approve",
                "tea",
            )
            for sent, why in (
                (message("no, coffee", context=task.context_id), "waits"),
                (message(_reply("unknown"), task=task.id, context=task.context_id), "one open interrupt"),
                (message(_reply(asked["interruptId"]), "and", task=task.id, context=task.context_id), "stand alone"),
            ):
                with pytest.raises(Exception, match=why):
                    await told(client, sent)
            reply = _reply(asked["interruptId"]) if by_data else "yes"
            done = task_in(await told(client, message(reply, task=task.id, context=task.context_id)))
    assert (done.id, done.status.state, answer(done)) == (task.id, TaskState.completed, "ordered")


def _reply(interrupt: str) -> DataPart:
    return DataPart(data={"interruptResponse": {"interruptId": interrupt, "response": "yes"}})


async def test_a_turn_that_fails_tells_the_same_of_it(tmp_path: Path, face: str) -> None:
    with _address(face, tmp_path, RuntimeError("the password is hunter2")) as url:
        async with _asking(url) as client:
            task = task_in(await told(client, message("Tea?")))
    (words,) = task.status.message.parts  # type: ignore[union-attr]
    assert (task.status.state, words.root.text) == (
        TaskState.failed,
        "a model, a tool or a hook tried and failed",
    )


@pytest.mark.parametrize(
    ("sent", "code", "named"),
    [
        (b"{", -32700, None),
        (b'{"jsonrpc": "1.0", "id": "a", "method": "tasks/get"}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": "a", "params": {}}', -32600, "a"),
        (b'{"jsonrpc": "2.0", "id": [], "method": "tasks/get"}', -32600, None),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "tasks/dance"}', -32601, 2),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "message/send", "params": {}}', -32602, 2),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"id": "x"}}', -32001, 2),
        (
            b'{"jsonrpc": "2.0", "id": 2, "method": "tasks/pushNotificationConfig/get", "params": {"id": ""}}',
            -32003,
            2,
        ),
        (b'{"jsonrpc": "2.0", "id": 2, "method": "agent/getAuthenticatedExtendedCard"}', -32007, 2),
    ],
)
async def test_a_wrong_request_gets_the_error_of_the_protocol_under_its_id(
    tmp_path: Path, face: str, sent: bytes, code: int, named: object
) -> None:
    with _address(face, tmp_path, "four") as url:
        async with httpx.AsyncClient() as http:
            said = await http.post(f"{url}/", content=sent, headers={"content-type": "application/json"})
    body = said.json()
    assert (said.status_code, body["error"]["code"], body["id"]) == (200, code, named)
