"""Ollama's reasoning, and a conversation that other services have begun."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.backends.models.ollama import chat_request
from repertory.backends.models.provider import model_call
from repertory.core.messages import Message
from repertory.errors import Invalid
from tests.backends.models.sdk_services import HELLO, OLLAMA, OLLAMA_END, ask, line, ollama_piece

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

AGAIN: Message = {"role": "user", "content": [{"text": "And then?"}]}
PICTURE: Any = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


def sent(*messages: Message) -> list[dict[str, Any]]:
    return chat_request(model_call({"model_id": "llama3.2"}, list(messages), [], None, {}))["messages"]


@pytest.mark.parametrize("pieces", [("Hm", "."), ("Hm.",)])
async def test_reasoning_is_marked_and_goes_back(pieces: tuple[str, ...]) -> None:
    thoughts = [line(ollama_piece("", message={"thinking": piece})) for piece in pieces]
    async with OLLAMA.serving(OLLAMA.streaming(*thoughts, *OLLAMA.text("4"))) as (model, server):
        answer = await ask(model)
        await ask(model, [*HELLO, answer.message, AGAIN])
        body = server.requests[1].body
    thought = {"reasoningText": {"text": "Hm."}, "provider": "ollama"}
    assert answer.message["content"] == [{"reasoningContent": thought}, {"text": "4"}]
    assert body["messages"][1] == {"role": "assistant", "content": "4", "thinking": "Hm."}


async def test_reasoning_of_an_answer_that_came_whole_is_marked() -> None:
    async def handle(exchange: Any) -> None:
        await exchange.answer(200, ollama_piece("4", message={"content": "4", "thinking": "Hm."}, **OLLAMA_END))

    async with OLLAMA.serving(handle, streaming=False) as (model, _):
        answer = await ask(model)
    assert answer.message["content"][0]["reasoningContent"]["provider"] == "ollama"


def test_reasoning_and_parts_of_other_services_stay_behind() -> None:
    signed = {"reasoningText": {"text": "Hm.", "signature": "c2ln"}, "provider": "gemini"}
    ran = {"provider": "gemini", "content": {"executableCode": {"code": "print(2)"}}}
    answer: Message = {
        "role": "assistant",
        "content": [{"reasoningContent": signed}, {"providerContent": ran}, {"text": "2"}, PICTURE],
    }
    (_, said, _) = sent(*HELLO, answer, AGAIN)
    assert said == {
        "role": "assistant",
        "content": "(The provider ran code: print(2))\n2\n(An image stood here.)",
    }


def test_what_the_server_cannot_be_shown_is_named_once_and_noted_later() -> None:
    film: Any = {"video": {"format": "mp4", "source": {"bytes": b"v"}}}
    with pytest.raises(Invalid, match=r"Ollama cannot take this video block.*message=0"):
        sent({"role": "user", "content": [film]})
    gif: Any = {"image": {"format": "gif", "source": {"bytes": b"GIF89a"}}}
    with pytest.raises(Invalid, match="jpeg, png and webp"):
        sent({"role": "user", "content": [gif]})
    paper: Any = {"document": {"format": "pdf", "name": "a", "source": {"bytes": b"%PDF"}}}
    (asked, _, _) = sent({"role": "user", "content": [paper]}, {"role": "assistant", "content": [{"text": "?"}]}, AGAIN)
    assert "left out" in asked["content"]
    use: Any = {"toolUse": {"toolUseId": "1", "name": "film", "input": {}}}
    result: Any = {"toolResult": {"toolUseId": "1", "status": "success", "content": [film, PICTURE]}}
    (_, _, told, shown) = sent(*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})
    assert "left out" in told["content"]
    assert shown["images"] == ["iVBORw=="]
