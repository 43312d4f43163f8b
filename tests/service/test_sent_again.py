"""Requests that clients send again, at every protocol: an answer is to one question, and a new request is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from tests.service.answering_clients import Bank, Client, Door, Sign, pays

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize(("door", "sign"), [*((door, "key") for door in get_args(Door)), ("chat", "mark")])
async def test_an_answer_that_is_sent_again_allows_nothing_else(tmp_path: Path, door: Door, sign: Sign) -> None:
    bank, client = Bank(tmp_path, pays(1), pays(1_000_000), "both paid"), Client(door, sign)
    steps = (("pay", "Pay 1?"), ("yes", "Pay 1000000?"), ("yes", "Really?"), ("yes", "both paid"))
    for number, (text, told) in enumerate(steps):
        runtime, client.app = bank.process()
        async with runtime:
            assert told in (await client.say(text, f"r{number}")).text
            paid = [*bank.paid]
            if sign == "key" or number < 3:  # Without a key, an answer that was sent whole is over.
                assert told in (await client.say(text, f"r{number}", again=True)).text
        runtime, client.app = bank.process()
        async with runtime:
            assert told in (await client.say(text, f"r{number}", again=True)).text
        assert bank.paid == paid
    assert (bank.paid, len(bank.model.calls)) == ([1, 1_000_000], 3)


@pytest.mark.parametrize("door", ["chat", "responses"])
async def test_a_prompt_that_was_answered_long_ago_is_no_answer_when_it_is_sent_again(
    tmp_path: Path, door: Door
) -> None:
    bank, client = Bank(tmp_path, "looked", pays(1)), Client(door)
    runtime, client.app = bank.process()
    async with runtime:
        await client.say("yes", "k1")
        await client.say("pay", "k2")
    runtime, client.app = bank.process()
    async with runtime:
        assert "looked" in (await client.say("yes", "k1")).text
    assert bank.paid == []


async def test_a_new_message_whose_first_try_did_not_arrive_is_run(tmp_path: Path) -> None:
    bank, client = Bank(tmp_path, "page 1", "page 2", "page 3"), Client("chat", "mark")
    runtime, client.app = bank.process()
    async with runtime:
        pages = [(await client.say("next", "r", again=number > 0)).json() for number in range(3)]
    assert [page["choices"][0]["message"]["content"] for page in pages] == ["page 1", "page 2", "page 3"]


async def test_a_request_that_came_twice_is_one_turn_however_slow_its_store_is(tmp_path: Path) -> None:
    bank, client, answers = Bank(tmp_path, "ordered", "twice"), Client("chat", "mark"), list[str]()
    runtime, client.app = bank.process()

    async def say(*, again: bool) -> None:
        answers.append((await client.say("order", "r", again=again)).json()["choices"][0]["message"]["content"])

    async with runtime, anyio.create_task_group() as group:
        group.start_soon(lambda: say(again=False))
        await anyio.lowlevel.checkpoint()
        group.start_soon(lambda: say(again=True))
    assert answers == ["ordered", "ordered"]


async def test_a_request_whose_client_went_before_its_answer_is_the_same_when_it_comes_again(tmp_path: Path) -> None:
    bank, client = Bank(tmp_path, "ordered", "twice"), Client("chat", "mark")
    runtime, client.app = bank.process()
    body = json.dumps({"model": "helper", "messages": [{"role": "user", "content": "order"}], "conversation": "s"})
    heads = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": heads,
    }
    arrives: Any = [{"type": "http.request", "body": body.encode()}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return arrives[0] if len(arrives) == 1 else arrives.pop(0)

    async def send(message: Any) -> None:
        del message

    async with runtime:
        await client.app(scope, receive, send)
        answer = await client.post(scope["path"], json.loads(body), {"x-stainless-retry-count": "1"})
    assert answer.json()["choices"][0]["message"]["content"] == "ordered"


async def test_a_key_with_two_bodies_at_one_moment_is_one_request(tmp_path: Path) -> None:
    bank, client, statuses = Bank(tmp_path, "one", "two"), Client("chat"), list[int]()
    runtime, client.app = bank.process()

    async def say(text: str) -> None:
        statuses.append((await client.say(text, "k")).status_code)

    async with runtime, anyio.create_task_group() as group:
        group.start_soon(say, "one")
        group.start_soon(say, "two")
    assert sorted(statuses) == [200, 422]
    assert len(bank.model.calls) == 1


async def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    bank, client = Bank(tmp_path), Client("chat")
    runtime, client.app = bank.process()
    async with runtime:
        assert (await client.say("pay", "")).status_code == 400
        path, headers = "/v1/agents/helper/sessions/s/turns", {"idempotency-key": ""}
        assert (await client.post(path, {"prompt": "pay"}, headers)).status_code == 422
    assert bank.model.calls == []


async def test_an_answer_to_no_question_is_not_kept_for_later(tmp_path: Path) -> None:
    bank, client = Bank(tmp_path, pays(1), "paid"), Client("chat")
    runtime, client.app = bank.process()
    path, later = "/v1/agents/helper/sessions/s", {"prefer": "respond-async"}

    async def answer(interrupt: str, token: str | None = None) -> int:
        body = {"answers": [{"id": interrupt, "response": "yes"}], **({} if token is None else {"token": token})}
        return (await client.post(f"{path}/interrupts", body, later)).status_code

    async with runtime:
        assert (await client.post(f"{path}/timers", {"prompt": "pay", "in_s": 1000})).status_code < 300
        assert await answer("nobody", "early") == 404
        asked = (await client.post(f"{path}/turns", {"prompt": "pay", "token": "t"})).json()
        for token in (None, "t", "new"):
            assert await answer("nobody", token) == 404
        assert await answer(asked["result"]["interrupts"][0]["id"], "a") == 202
        assert (await client.post(f"{path}/turns", {"prompt": None, "token": "a"})).json()["text"] == "paid"
        assert await answer("nobody", "new") == 404
    assert bank.paid == [1]
