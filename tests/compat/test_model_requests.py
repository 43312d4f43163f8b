"""The builders of requests of the SDK's models: called by programs, and overridden for services of another form."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from repertory.backends.models.caching import CacheConfig
from repertory.compat.model_requests import SdkOllamaModel, SdkOpenAIModel
from repertory.core.messages import Message
from repertory.errors import Invalid
from tests.backends.models.sdk_services import OLLAMA, OPENAI, ask

PICTURE: Any = {"image": {"format": "png", "source": {"bytes": b"PNG"}}}
ELSEWHERE: Any = {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://b/i.png"}}}}
USE: Any = {"toolUse": {"toolUseId": "t1", "name": "draw", "input": {"of": "東京"}}}
CONVERSATION: list[Message] = [
    {"role": "user", "content": [{"text": "Draw."}, ELSEWHERE]},
    {"role": "assistant", "content": [USE]},
    {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "done"}, PICTURE]}}],
    },
]


def test_a_request_to_openai_has_parts_and_shows_a_tools_picture_in_a_users_message() -> None:
    request = SdkOpenAIModel(model_id="m", params={"max_tokens": 1}).format_request(CONVERSATION, system_prompt="Be.")
    system, asked, called, result, pictured = request.pop("messages")
    assert (system, asked) == (
        {"role": "system", "content": "Be."},
        {"role": "user", "content": [{"text": "Draw.", "type": "text"}]},
    )
    assert called["tool_calls"][0]["function"] == {"name": "draw", "arguments": '{"of": "東京"}'}
    assert (result["role"], [part["type"] for part in result["content"]]) == ("tool", ["text", "text"])
    assert (pictured["role"], pictured["content"][0]["type"]) == ("user", "image_url")
    assert request == {
        "model": "m",
        "tools": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1,
    }


def test_a_request_to_ollama_has_a_message_for_each_block() -> None:
    request = SdkOllamaModel("h", model_id="m", temperature=1, keep_alive=0).format_request(CONVERSATION)
    assert request["messages"] == [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "tool_calls": [{"function": {"name": "draw", "arguments": {"of": "東京"}}}]},
        {"role": "tool", "content": "done"},
        {"role": "tool", "images": [b"PNG"]},
    ]
    assert (request["options"], request["keep_alive"], request["tools"]) == ({"temperature": 1}, 0, [])


def test_a_block_that_has_no_form_there_is_a_type_error() -> None:
    unknown: Any = {"unheard": {}}
    with pytest.raises(TypeError, match="content_type=<unheard>"):
        SdkOpenAIModel.format_request_message_content(unknown)
    with pytest.raises(TypeError, match="content_type=<unheard>"):
        SdkOllamaModel("h", model_id="m").format_request([{"role": "user", "content": [unknown]}])


def test_a_cache_that_ollama_does_not_have_is_warned_of() -> None:
    model = SdkOllamaModel("h", model_id="m", cache_config=CacheConfig(ttl="1h"))
    with pytest.warns(UserWarning, match=r"\['ttl'\] have no effect on Ollama"):
        model.format_request([])


def test_pieces_of_an_answer_of_ollama_become_events() -> None:
    model = SdkOllamaModel("h", model_id="m")
    assert model.format_chunk({"chunk_type": "message_stop", "data": "length"}) == {
        "messageStop": {"stopReason": "max_tokens"}
    }
    with pytest.raises(Invalid, match="unknown type"):
        model.format_chunk({"chunk_type": "other"})
    with pytest.warns(UserWarning, match=r"Own\.format_chunk is not called"):
        type("Own", (SdkOllamaModel,), {"format_chunk": lambda self, event: event})


class Shouting(SdkOpenAIModel):
    @classmethod
    def format_request_message_content(cls, content: Any, **kwargs: Any) -> dict[str, Any]:
        part = super().format_request_message_content(content)
        return {**part, "text": part["text"].upper()}


class Patient(SdkOllamaModel):
    def format_request(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return {**super().format_request(*arguments, **options), "keep_alive": "1h"}


@pytest.mark.anyio
@pytest.mark.real_time
async def test_the_request_of_an_overridden_builder_is_sent() -> None:
    async with OPENAI.serving(OPENAI.streaming(*OPENAI.text("4"))) as (_, server):
        arguments = {"api_key": "k", "base_url": f"{server.url}/v1"}
        async with aclosing(Shouting(client_args=arguments, model_id="m", params={"top_k": 3})) as own:
            await ask(own)
        assert server.requests[0].body["top_k"] == 3
        assert server.requests[0].body["messages"][-1]["content"][0]["text"].isupper()
    async with OLLAMA.serving(OLLAMA.streaming(*OLLAMA.text("4"))) as (_, server):
        async with aclosing(Patient(server.url, model_id="m")) as own:
            await ask(own)
        assert server.requests[0].body["keep_alive"] == "1h"
