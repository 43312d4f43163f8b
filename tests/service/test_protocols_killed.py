"""What was accepted over a protocol is done once, though the process that accepted it is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from openai import OpenAI

from tests.service.histories import read_histories
from tests.service.test_ag_ui_protocol import asked, said
from tests.service.test_asgi_servers import Http, served

pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("name", ["uvicorn-asyncio", "hypercorn-trio"])]


@contextmanager
def openai_of(client: Http) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{client.base_url.netloc.decode()}/v1", api_key="none", max_retries=0) as made:
        yield made


def told(tmp_path: Path, session: str) -> Any:
    return anyio.run(read_histories, tmp_path / "a.db", "helper", [session])[0]


def rpc(client: Http, method: str, **params: Any) -> Any:
    answer = client.post("/a2a/helper", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return answer.json()["result"]


def test_a_response_in_the_background_is_finished_by_the_next_process(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path) as client, openai_of(client) as api:
        begun = api.responses.create(model="helper", input="slow one", background=True, conversation="s1")
        assert begun.status == "in_progress"
        client.program.kill()
    with served(name, tmp_path) as client, openai_of(client) as api:
        while (found := api.responses.retrieve(begun.id)).status == "in_progress":
            pass
        assert (found.status, found.output_text) == ("completed", "done: slow one")
    assert told(tmp_path, "s1") == ["slow one", "done: slow one"]


def test_a_request_with_a_key_is_gone_on_with_where_it_was(name: str, tmp_path: Path) -> None:
    ask: Any = {"model": "helper", "messages": [{"role": "user", "content": "slow one"}], "stream": True}
    more: Any = {"extra_headers": {"Idempotency-Key": "k1"}, "extra_body": {"conversation": "s1"}}
    with served(name, tmp_path) as client, openai_of(client) as api:
        for chunk in api.chat.completions.create(**ask, **more):
            if chunk.choices[0].delta.content:
                break
        client.program.kill()
    with served(name, tmp_path) as client, openai_of(client) as api:
        chunks = [*api.chat.completions.create(**ask, **more)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "done: slow one"
    assert told(tmp_path, "s1") == ["slow one", "done: slow one"]


def test_a_task_is_finished_by_the_next_process(name: str, tmp_path: Path) -> None:
    message = {"messageId": "m1", "contextId": "c1", "role": "user", "parts": [{"kind": "text", "text": "slow one"}]}
    with served(name, tmp_path) as client:
        task = rpc(client, "message/send", message=message, configuration={"blocking": False})
        assert task["status"]["state"] == "working"
        client.program.kill()
    with served(name, tmp_path) as client:
        while (found := rpc(client, "tasks/get", id=task["id"]))["status"]["state"] == "working":
            pass
        assert found["artifacts"][0]["parts"][0]["text"] == "done: slow one"
        again = rpc(client, "message/send", message=message)
        assert (again["id"], again["status"]["state"]) == (task["id"], "completed")
    assert told(tmp_path, "c1") == ["slow one", "done: slow one"]


def test_a_run_that_is_sent_again_goes_on(name: str, tmp_path: Path) -> None:
    body = asked("slow one", "r1", "s1")
    with served(name, tmp_path) as client:
        with client.stream("POST", "/ag-ui/helper", json=body) as answer:
            for line in answer.iter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
        client.program.kill()
    with served(name, tmp_path) as client:
        answer = client.post("/ag-ui/helper", json=body)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert said(events) == "done: slow one"
        assert events[-1]["outcome"] == {"type": "success"}
    assert told(tmp_path, "s1") == ["slow one", "done: slow one"]
    assert httpx.codes.is_success(answer.status_code)
