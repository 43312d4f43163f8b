"""The builder of requests of the SDK's `OllamaModel`: called by programs, and overridden."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from repertory.backends.models.caching import CacheConfig
from repertory.compat.model_requests import SdkOllamaModel
from repertory.core.messages import Message
from repertory.errors import Invalid
from tests.backends.models.sdk_services import OLLAMA, ask

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


class Patient(SdkOllamaModel):
    def format_request(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return {**super().format_request(*arguments, **options), "keep_alive": "1h"}


@pytest.mark.anyio
@pytest.mark.real_time
async def test_the_request_of_an_overridden_builder_is_sent() -> None:
    async with OLLAMA.serving(OLLAMA.streaming(*OLLAMA.text("4"))) as (_, server):
        async with aclosing(Patient(server.url, model_id="m")) as own:
            await ask(own)
        assert server.requests[0].body["keep_alive"] == "1h"
