"""The protocols on both event loops, with clients that come and go: what they leave behind, and what they may ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from tests.service.asgi_client import Client, serving
from tests.service.living import Living
from tests.worker.obedient_model import ObedientModel

pytestmark = pytest.mark.anyio
ASKS_CHAT: dict[str, Any] = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "endless"}]}


def runtime_of(model: Any, place: Any = None) -> Runtime:
    runtime = Runtime(sessions=place)
    runtime.agent(AgentSpec(name="helper", model=model, retry_strategy=None))
    return runtime


async def leave(client: Client, path: str, body: dict[str, Any]) -> None:
    """Ask, and go when the answer has begun."""
    async with client.streaming(path, body) as streamed:
        await streamed.begun()


def rpc(number: int, text: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    message = {"messageId": f"m{number}", "contextId": f"c{number}", "role": "user", "parts": parts}
    return {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {"message": message}}


def run(number: int, text: str) -> dict[str, Any]:
    said = {"id": "m", "role": "user", "content": text}
    return {"threadId": f"t{number}", "runId": "r", "messages": [said], "tools": [], "context": [], "state": None}


@pytest.mark.real_time
async def test_nothing_is_left_of_clients_that_have_gone(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    async with serving(runtime_of(ObedientModel(), place)) as client:
        before = Living(0, 0, 0)
        for number in range(6):
            if number == 3:  # The actors of a session rest a moment after its turn.
                before = Living.now()
            await leave(client, "/v1/chat/completions", ASKS_CHAT)
            for path, body in (
                (
                    "/v1/responses",
                    {"model": "helper", "input": "slow one", "stream": True, "conversation": f"s{number}"},
                ),
                ("/a2a/helper", rpc(number, "slow one")),
                ("/ag-ui/helper", run(number, "slow one")),
            ):
                await leave(client, path, body)
            for path, body in (
                ("/a2a/helper", rpc(number, "slow one")),
                ("/ag-ui/helper", run(number, "slow one")),
                ("/v1/responses", {"model": "helper", "input": "x", "conversation": f"s{number}"}),
            ):
                answer = await client.post(path, json=body)
                assert answer.status_code == 200
                assert '"completed"' in answer.text or '"success"' in answer.text
        assert await before.comes_again()


async def test_a_conversation_that_nobody_keeps_ends_with_its_client() -> None:
    ended = anyio.Event()

    class Endless(ScriptedModel):
        async def stream(self, *args: Any, **options: Any) -> Any:
            try:
                yield {"messageStart": {"role": "assistant"}}
                yield {"contentBlockDelta": {"delta": {"text": "a"}, "contentBlockIndex": 0}}
                await anyio.sleep_forever()
            finally:
                ended.set()

    for body in (ASKS_CHAT, {**ASKS_CHAT, "stream": False}):
        ended = anyio.Event()
        async with serving(runtime_of(Endless([]))) as client, client.streaming("/v1/chat/completions", body):
            with anyio.move_on_after(2):
                await anyio.sleep(1)
        with anyio.fail_after(5):
            await ended.wait()


async def test_a_text_in_a_stream_that_breaks_off_is_followed_by_an_error() -> None:
    from repertory.errors import ModelStreamBroken

    class Breaking(ScriptedModel):
        async def stream(self, *args: Any, **options: Any) -> Any:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": "a"}, "contentBlockIndex": 0}}
            raise ModelStreamBroken("broken off")

    async with serving(runtime_of(Breaking([]))) as client:
        chat = {**ASKS_CHAT, "conversation": "s1"}
        lines = [line[6:] for line in (await client.post("/v1/chat/completions", json=chat)).text.split("\n\n") if line]
        assert json.loads(lines[-1])["error"]["type"] == "server_error"
        asked = {"model": "helper", "input": "x", "stream": True, "conversation": "s2"}
        told = (await client.post("/v1/responses", json=asked)).text
        assert told.rstrip().split("event: ")[-1].startswith("response.failed")
        assert '"status": "incomplete"' in told
        assert '"failed"' in (await client.post("/a2a/helper", json=rpc(1, "x"))).text
        assert '"RUN_ERROR"' in (await client.post("/ag-ui/helper", json=run(1, "x"))).text
