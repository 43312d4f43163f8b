"""What Gemini is sent: media of tools, signatures that it never gave, names, other services' reasoning; its waits."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from repertory.backends.models.gemini import content_request, wait_in_details_s
from repertory.backends.models.provider import model_call
from repertory.core.messages import ContentBlock, Message, ToolSpec
from repertory.errors import Invalid, Throttled
from tests.backends.models.sdk_services import GEMINI, HELLO, ask, event, gemini_piece
from tests.backends.models.wire_server import Exchange

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

NEW, OLD = "gemini-3-flash-preview", "gemini-2.5-flash"
STAND_IN = b"skip_thought_signature_validator"
PICTURE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
PNG = {"inline_data": {"data": b"\x89PNG", "mime_type": "image/png"}}
ATTACHED = {"text": "(The image is attached.)"}


def use(use_id: str, name: str = "look", **fields: Any) -> ContentBlock:
    made: Any = {"toolUse": {"toolUseId": use_id, "name": name, "input": {}, **fields}}
    return made


def result(use_id: str, *content: dict[str, Any], status: str = "success") -> ContentBlock:
    made: Any = {"toolResult": {"toolUseId": use_id, "status": status, "content": list(content)}}
    return made


def assistant(*blocks: ContentBlock) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: ContentBlock) -> Message:
    return {"role": "user", "content": list(blocks)}


def parts_of(messages: list[Message], model_id: str = NEW, tools: list[ToolSpec] | None = None) -> list[Any]:
    """The parts of each content of the request."""
    request = content_request(model_call({"model_id": model_id}, messages, tools, None, {}))
    return [content["parts"] for content in request["contents"]]


# Media in the results of tools.


def test_a_tools_picture_is_in_the_response_from_gemini_3_on() -> None:
    (_, _, (response,)) = parts_of([*HELLO, assistant(use("1")), user(result("1", {"text": "See."}, PICTURE))])
    assert response["function_response"] == {
        "id": "1",
        "name": "look",
        "response": {"output": [{"text": "See."}, ATTACHED]},
        "parts": [PNG],
    }


@pytest.mark.parametrize("model_id", [OLD, "gemini-flash-latest", "tunedModels/mine"])
def test_a_tools_picture_stands_behind_all_responses_for_other_models(model_id: str) -> None:
    results = user(result("1", PICTURE), result("2", {"json": {"a": 1}}), {"text": "Go on."})
    (_, _, parts) = parts_of([*HELLO, assistant(use("1"), use("2")), results], model_id)
    assert parts[0]["function_response"] == {"id": "1", "name": "look", "response": {"output": [ATTACHED]}}
    assert parts[1]["function_response"]["response"] == {"output": [{"json": {"a": 1}}]}
    assert parts[2:] == [PNG, {"text": "Go on."}]


def test_media_that_a_response_cannot_hold_stand_behind_it() -> None:
    sound: Any = {"audio": {"format": "wav", "source": {"bytes": b"RIFF"}}}
    (_, _, parts) = parts_of([*HELLO, assistant(use("1")), user(result("1", sound, PICTURE, status="error"))])
    assert parts[0]["function_response"]["response"] == {"error": [{"text": "(The audio is attached.)"}, ATTACHED]}
    assert parts[0]["function_response"]["parts"] == [PNG]
    assert parts[1:] == [{"inline_data": {"data": b"RIFF", "mime_type": "audio/wav"}}]


@pytest.mark.parametrize(
    "source",
    [
        {"format": "txt", "source": {"bytes": "Ä".encode()}},
        {"source": {"text": "Ä"}},
        {"source": {"content": [{"text": "Ä"}]}},
    ],
)
def test_a_document_of_text_is_text_in_the_response(source: dict[str, Any]) -> None:
    document: Any = {"document": {"name": "a", **source}}
    (_, _, (response,)) = parts_of([*HELLO, assistant(use("1")), user(result("1", document))])
    assert response["function_response"]["response"] == {"output": [{"text": "Ä"}]}


async def test_a_picture_goes_over_the_wire_once_and_never_as_text() -> None:
    messages = [*HELLO, assistant(use("1")), user(result("1", PICTURE))]
    async with GEMINI.serving(GEMINI.streaming(*GEMINI.text("ok")), model_id=NEW) as (model, server):
        await ask(model, messages)
        (part,) = server.requests[0].body["contents"][2]["parts"]
    data = base64.b64encode(b"\x89PNG").decode()
    assert str(part).count(data) == 1
    assert data not in str(part["functionResponse"]["response"])


@pytest.mark.parametrize(("kind", "form"), [("image", "gif"), ("document", "docx")])
def test_formats_that_the_service_refuses_are_named_once_and_noted_later(kind: str, form: str) -> None:
    odd: Any = {kind: {"format": form, "name": "a", "source": {"bytes": b"GIF89a"}}}
    with pytest.raises(Invalid, match=rf"Gemini cannot take this {kind} block.*message=0.*content_block=1"):
        parts_of([user({"text": "What is it?"}, odd)])
    (first, _, _) = parts_of([user({"text": "What is it?"}, odd), assistant({"text": "?"}), user({"text": "1 + 1?"})])
    assert "left out" in first[1]["text"]


# Signatures that the model never gave.


def test_the_first_call_of_each_step_has_a_signature_from_gemini_3_on() -> None:
    messages = [
        *HELLO,
        assistant({"text": "Let me."}, use("1"), use("2")),
        user(result("1", {"text": "a"}), result("2", {"text": "b"})),
        assistant(use("3", reasoningSignature=base64.b64encode(b"own").decode())),
        user(result("3", {"text": "c"})),
    ]
    (_, first, _, second, _) = parts_of(messages)
    assert [part.get("thought_signature") for part in first] == [None, STAND_IN, None]
    assert second[0]["thought_signature"] == b"own"


@pytest.mark.parametrize(
    ("model_id", "signed"),
    [
        (NEW, True),
        ("models/gemini-3.1-pro", True),
        ("publishers/google/models/gemini-4-argon", True),
        ("gemini-flash-latest", True),
        (OLD, False),
        ("gemini-1.5-pro-latest", False),
        ("gemma-3-27b-it", False),
    ],
)
def test_only_models_that_want_a_signature_get_a_stand_in(model_id: str, signed: bool) -> None:
    (_, (call,), _) = parts_of([*HELLO, assistant(use("1")), user(result("1", {"text": "a"}))], model_id)
    assert call.get("thought_signature") == (STAND_IN if signed else None)


async def test_the_stand_in_arrives_as_base64() -> None:
    messages = [*HELLO, assistant(use("1")), user(result("1", {"text": "a"}))]
    async with GEMINI.serving(GEMINI.streaming(*GEMINI.text("ok")), model_id=NEW) as (model, server):
        await ask(model, messages)
        (part,) = server.requests[0].body["contents"][1]["parts"]
    assert base64.urlsafe_b64decode(part["thoughtSignature"]) == STAND_IN


@pytest.mark.parametrize("mark", [{"provider": "anthropic"}, {}], ids=["another service's", "unknown"])
def test_a_signature_that_is_not_geminis_own_stays_behind(mark: dict[str, str]) -> None:
    """Gemini refuses it. In an earlier turn it is not needed."""
    reasoning: Any = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "EqoBCkgIAx"}, **mark}}
    alone: Any = {"reasoningContent": {"reasoningText": {"text": "", "signature": "EqoBCkgIAx"}, **mark}}
    (_, parts, _) = parts_of([*HELLO, assistant(reasoning, {"text": "4"}, alone), user({"text": "Thank you."})])
    thoughts = [] if mark else [{"text": "Hm.", "thought": True}]
    assert parts == [*thoughts, {"text": "4"}]


@pytest.mark.parametrize("signature", ["_-8=", "/+8=", "_-8", "/+8"])
def test_base64_of_either_alphabet_is_a_signature_with_or_without_padding(signature: str) -> None:
    signed = use("1", reasoningSignature=signature)
    (_, (call,), _) = parts_of([*HELLO, assistant(signed), user(result("1", {"text": "a"}))], OLD)
    assert call["thought_signature"] == b"\xff\xef"


# Turns and names.


def test_a_window_that_begins_with_a_call_gets_a_users_message_in_front() -> None:
    (note, _, _) = parts_of([assistant(use("1")), user(result("1", {"text": "a"}), {"text": "Thank you."})])
    assert "left out" in note[0]["text"]


def test_results_come_before_everything_else_of_their_turn() -> None:
    (_, _, parts) = parts_of([*HELLO, assistant(use("1")), user({"text": "Wait."}, result("1", {"text": "a"}))])
    assert [next(iter(part)) for part in parts] == ["function_response", "text"]


async def test_a_tool_whose_name_begins_with_a_digit_gets_another_one() -> None:
    """Gemini wants a letter or an underscore there."""
    tools: list[ToolSpec] = [{"name": "3d", "description": "Draws.", "inputSchema": {"json": {"type": "object"}}}]

    async def handle(exchange: Exchange) -> None:
        name = exchange.body["tools"][0]["functionDeclarations"][0]["name"]
        piece = gemini_piece({"functionCall": {"name": name, "args": {}}}, finish="STOP")
        await exchange.stream(event(piece), media=GEMINI.media)

    async with GEMINI.serving(handle) as (model, server):
        answer = await ask(model, tool_specs=tools, tool_choice={"tool": {"name": "3d"}})
        body = server.requests[0].body
    sent = body["tools"][0]["functionDeclarations"][0]["name"]
    assert sent.startswith("_3d_")
    assert body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == [sent]
    assert answer.message["content"][0]["toolUse"]["name"] == "3d"


# Waits.


@pytest.mark.parametrize(("delay", "wait_s"), [("48s", 48.0), ("3.5s", 3.5), ("soon", None), ("-1s", None), (48, None)])
async def test_the_delay_that_an_error_names_is_waited_for(delay: object, wait_s: float | None) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.Help"}, {"retryDelay": delay}]
    body = {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED", "details": details}}

    async def handle(exchange: Exchange) -> None:
        await exchange.answer(429, body)

    async with GEMINI.serving(handle) as (model, _):
        with pytest.raises(Throttled) as caught:
            await ask(model)
    assert caught.value.retry_after_s == wait_s


@pytest.mark.parametrize("body", [None, "busy", [], {}, {"error": "busy"}, {"error": {"details": ["busy"]}}])
def test_an_error_of_another_form_names_no_delay(body: object) -> None:
    assert wait_in_details_s(body) is None
