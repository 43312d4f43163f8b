"""What answers of Chat Completions hold beside text and calls: sources, sounds, pictures, and rarer forms."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.openai import completion_arguments
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer, Assembler
from repertory.errors import ModelFailed, ModelStreamBroken
from tests.backends.models.sdk_services import OPENAI, WITH_EVENTS, SdkService, ask, chunk, event
from tests.backends.models.wire_server import Exchange

PNG = b"\x89PNG\r\n\x1a\npicture"
SOUND = b"RIFF....WAVE"
PAGE = {"type": "url_citation", "url_citation": {"url": "https://a.test", "title": "A", "content": "words"}}
PAGE_CITED = {"title": "A", "location": {"web": {"url": "https://a.test"}}, "sourceContent": [{"text": "words"}]}
CHAT = [each for each in WITH_EVENTS if each.path.startswith("/v1/chat")]


def assembled(events: list[Any]) -> Answer:
    assembler = Assembler()
    for each in events:
        assembler.feed(each)
    return assembler.finish()


def whole(message: dict[str, Any] | None, **fields: Any) -> Answer:
    choice = {"index": 0, "message": message, "finish_reason": fields.pop("finish_reason", "stop")}
    reader = CompletionReader(audio_format=fields.pop("audio_format", None))
    return assembled([*reader.whole({"id": "c", "choices": [choice], **fields}), *reader.finish()])


def streamed(*deltas: dict[str, Any], done: bool = False, finish: str | None = "stop", **last: Any) -> Answer:
    reader = CompletionReader()
    chunks = [*(chunk(delta) for delta in deltas), *([chunk({}, finish)] if finish else ()), chunk(**last)]
    events = [each for piece in chunks for each in reader.feed(piece)]
    if done:
        reader.ended()
    return assembled([*events, *reader.finish()])


def sent_back(answer: Answer) -> dict[str, Any]:
    """The answer as a message of the next request."""
    messages: Any = [
        {"role": "user", "content": [{"text": "a"}]},
        answer.message,
        {"role": "user", "content": [{"text": "b"}]},
    ]
    return completion_arguments(model_call({"model_id": "m"}, messages, None, None, {}))["messages"][1]


def test_sources_of_an_answer_stand_with_its_text() -> None:
    expected = [{"citationsContent": {"content": [{"text": "It is so."}], "citations": [PAGE_CITED]}}]
    assert whole({"content": "It is so.", "annotations": [PAGE]}).message["content"] == expected
    first = streamed(
        {"annotations": [PAGE], "content": "", "role": "assistant"}, {"content": "It is "}, {"content": "so."}
    )
    assert first.message["content"] == expected
    last = streamed({"content": "It is so."}, {"annotations": [PAGE]})
    assert last.message["content"] == expected
    assert sent_back(last) == {"role": "assistant", "content": "It is so."}


@pytest.mark.parametrize(
    ("fields", "titles"),
    [
        ({"citations": ["https://a.test"]}, [""]),
        (
            {
                "citations": ["https://a.test"],
                "search_results": [{"title": "A", "url": "https://a.test", "date": None, "snippet": "words"}],
            },
            ["A"],
        ),
        ({"citations": [3], "search_results": None}, None),
    ],
)
def test_sources_beside_an_answer_are_read_once(fields: dict[str, Any], titles: list[str] | None) -> None:
    """Perplexity sends them with every piece that has a usage."""
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": 1,
    }
    reader = CompletionReader()
    pieces = [chunk({"content": part}, usage=usage, **fields) for part in ("It is ", "so.")]
    events = [each for piece in [*pieces, chunk({}, "stop", usage=usage, **fields)] for each in reader.feed(piece)]
    for answer in (whole({"content": "It is so."}, **fields), assembled([*events, *reader.finish()])):
        (block,) = answer.message["content"]
        if titles is None:
            assert block == {"text": "It is so."}
        else:
            cited = block["citationsContent"]
            assert cited["content"] == [{"text": "It is so."}]
            assert [each["title"] for each in cited["citations"]] == titles
            assert cited["citations"][0]["location"] == {"web": {"url": "https://a.test"}}


def test_annotations_of_other_kinds_are_passed_over() -> None:
    assert whole({"content": "a", "annotations": [{"type": "file", "file": {}}]}).message["content"] == [{"text": "a"}]


def test_a_sound_is_a_block_and_its_words_are_the_text() -> None:
    audio = {"id": "a1", "data": base64.b64encode(SOUND).decode(), "transcript": "Hello there.", "expires_at": 9}
    answer = whole({"content": None, "audio": audio}, audio_format="mp3")
    assert answer.message["content"] == [
        {"text": "Hello there."},
        {"audio": {"format": "mp3", "source": {"bytes": SOUND}}},
    ]
    assert sent_back(answer) == {"role": "assistant", "content": "Hello there."}
    pieces = [
        {"audio": {"id": "a1", "transcript": "Hello "}},
        {"audio": {"data": base64.b64encode(SOUND[:4]).decode()}},
        {"audio": {"data": base64.b64encode(SOUND[4:]).decode(), "transcript": "there."}},
    ]
    answer = streamed(*pieces)
    assert answer.message["content"] == [
        {"text": "Hello there."},
        {"audio": {"format": "wav", "source": {"bytes": SOUND}}},
    ]


def test_a_sound_without_bytes_is_its_words_and_an_empty_one_is_nothing() -> None:
    assert whole({"content": None, "audio": {"data": "", "transcript": "Hi."}}).message["content"] == [{"text": "Hi."}]
    assert whole({"content": "a", "audio": {"data": "", "transcript": ""}}).message["content"] == [{"text": "a"}]


def test_a_sound_without_words_leaves_a_note_when_it_goes_back() -> None:
    answer = whole({"content": None, "audio": {"data": base64.b64encode(SOUND).decode()}})
    assert sent_back(answer)["content"] == "(A sound stood here.)"


def test_a_picture_of_an_answer_is_a_block() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    message = {"content": "Look.", "images": [{"type": "image_url", "image_url": {"url": url}}]}
    expected = [{"text": "Look."}, {"image": {"format": "png", "source": {"bytes": PNG}}}]
    answer = whole(message)
    assert answer.message["content"] == expected
    assert streamed({"content": "Look."}, {"images": message["images"]}).message["content"] == expected
    assert sent_back(answer)["content"] == "Look.\n(An image stood here.)"


def test_a_medium_that_is_no_base64_fails() -> None:
    with pytest.raises(ModelFailed, match="no base64"):
        whole({"content": None, "audio": {"data": "!"}})


CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "code", "input": 'print("é")'}}


def test_a_custom_call_is_a_tool_use_with_its_text() -> None:
    answer = whole({"content": None, "tool_calls": [CUSTOM]}, finish_reason="tool_calls")
    use = {"toolUseId": "c1", "name": "code", "input": {"input": 'print("é")'}}
    assert answer.message["content"] == [{"toolUse": use}]
    assert answer.stop_reason == "tool_use"
    pieces = [
        {"tool_calls": [{"index": 0, **CUSTOM, "custom": {"name": "code", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": 'print("'}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": 'é")'}}]},
    ]
    assert streamed(*pieces, finish="tool_calls").message["content"] == [{"toolUse": use}]
    assert sent_back(answer)["tool_calls"][0]["function"]["name"] == "code"


def test_an_empty_custom_call_beside_a_function_is_nothing() -> None:
    """Snowflake sends both."""
    call = {
        "id": "t",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
        "custom": {"name": "", "input": ""},
    }
    (block,) = whole({"content": None, "tool_calls": [call]}).message["content"]
    assert block == {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}


def test_an_object_as_content_is_its_json() -> None:
    """Cloudflare sends it for structured answers."""
    assert whole({"content": {"title": "Äpfel"}}).message["content"] == [{"text": '{"title": "Äpfel"}'}]


USAGE = {"prompt_tokens": 1, "completion_tokens": 1}


def test_the_end_mark_after_a_usage_is_an_end() -> None:
    answer = streamed({"content": "a"}, finish=None, done=True, usage=USAGE)
    assert (answer.message["content"], answer.stop_reason) == ([{"text": "a"}], "end_turn")
    for missing in ({"done": False, "usage": USAGE}, {"done": True}):
        with pytest.raises(ModelStreamBroken):
            streamed({"content": "a"}, finish=None, **missing)


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("service", CHAT, ids=lambda service: service.name)
async def test_a_stream_without_a_finish_reason_ends_with_its_mark(service: SdkService) -> None:
    pieces = [event(chunk({"content": "a"})), event(chunk(usage=USAGE))]
    async with service.serving(service.streaming(*pieces, event("[DONE]"))) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "a"}]
    async with service.serving(service.streaming(*pieces)) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)


def test_an_error_in_the_place_of_a_finish_is_a_broken_answer() -> None:
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "gone"}}
    with pytest.raises(ModelStreamBroken, match="gone"):
        list(CompletionReader().feed({"id": "c", "choices": [choice]}))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (  # xAI
            {
                "prompt_tokens": 12,
                "completion_tokens": 2,
                "total_tokens": 354,
                "completion_tokens_details": {"reasoning_tokens": 340},
            },
            {"inputTokens": 12, "outputTokens": 342, "totalTokens": 354},
        ),
        (  # Gemini
            {"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109},
            {"inputTokens": 35, "outputTokens": 74, "totalTokens": 109},
        ),
        (  # Voxtral
            {
                "prompt_tokens": 9,
                "completion_tokens": 248,
                "total_tokens": 632,
                "prompt_tokens_details": {"audio_tokens": 375, "cached_tokens": 0},
            },
            {"inputTokens": 384, "outputTokens": 248, "totalTokens": 632},
        ),
        (  # Grok on Azure
            {
                "prompt_tokens": 10,
                "completion_tokens": 213,
                "total_tokens": 223,
                "prompt_tokens_details": {"cached_tokens": 161},
            },
            {"inputTokens": 10, "outputTokens": 213, "totalTokens": 223, "cacheReadInputTokens": 161},
        ),
    ],
)
def test_tokens_beside_the_two_counts_are_counted(usage: Any, counted: dict[str, int]) -> None:
    assert whole({"content": "a"}, usage=usage).usage == counted
    assert streamed({"content": "a"}, usage=usage).usage == counted


def test_a_filtered_answer_without_a_message_is_filtered() -> None:
    """Azure sends the choice without one."""
    reader = CompletionReader()
    choice = {"index": 0, "finish_reason": "content_filter", "content_filter_results": {}}
    answer = assembled([*reader.whole({"id": "c", "choices": [choice]}), *reader.finish()])
    assert answer.stop_reason == "content_filtered"


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_picture_that_a_user_has_sent_is_still_sent_after_a_sound() -> None:
    """What stood in an answer is a note; what stood in a prompt is unchanged."""

    async def handle(exchange: Exchange) -> None:
        await exchange.stream(*OPENAI.text("ok"), media=OPENAI.media)

    messages: Any = [
        {"role": "user", "content": [{"text": "a"}, {"image": {"format": "png", "source": {"bytes": PNG}}}]},
        {"role": "assistant", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]},
        {"role": "user", "content": [{"text": "b"}]},
    ]
    async with OPENAI.serving(handle) as (model, server):
        await ask(model, messages)
        first, second, third = server.requests[0].body["messages"]
    assert first["content"][1]["type"] == "image_url"
    assert second["content"] == "(An image stood here.)"
    assert third["content"] == "b"
