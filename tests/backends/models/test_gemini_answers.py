"""Gemini's answers: signatures, parts of tools that the service runs, media, sources, partial calls, stop reasons."""

from __future__ import annotations

import base64
import gc
from typing import Any

import pytest

from repertory.backends.models.gemini import content_request
from repertory.backends.models.gemini_answer import ContentReader
from repertory.backends.models.ollama import chat_request
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer
from repertory.core.messages import ContentBlock, Message, check_message
from repertory.errors import ModelFailed, ModelRefused, ModelStreamBroken, RepertoryError
from tests.backends.models.sdk_services import GEMINI, HELLO, ask, event, gemini_piece
from tests.backends.models.wire_server import Exchange, Handler

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

Part = dict[str, Any]
ONE, TWO = base64.b64encode(b"a").decode(), base64.b64encode(b"bbb").decode()
"""Signatures: the first has padding."""
CODE: Part = {"executableCode": {"language": "PYTHON", "code": "print(2)", "id": "c1"}}
RAN: Part = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n", "id": "c1"}}
SEARCH: Part = {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["a_b"]}}}
FOUND: Part = {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"some_key": [1]}}}
AGAIN: Message = {"role": "user", "content": [{"text": "And then?"}]}


@pytest.fixture(params=["whole", "streamed", "in odd pieces"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


async def answered(how: str, *parts: Part, finish: str = "STOP", **fields: Any) -> Answer:
    """The answer of these parts, as the adapter reads it. `fields` are further fields of the last candidate."""
    if how == "whole":
        piece = gemini_piece(*parts, finish=finish)
        piece["candidates"][0] |= fields
        return await _whole(piece)
    pieces = [gemini_piece(part) for part in parts] or [gemini_piece()]
    pieces[-1]["candidates"][0] |= {"finishReason": finish, **fields}
    wire = [event(piece) for piece in pieces]
    if how == "in odd pieces":
        data = b"".join(wire)
        wire = [data[at : at + 37] for at in range(0, len(data), 37)]
    return await _asked(GEMINI.streaming(*wire))


async def _whole(piece: dict[str, Any]) -> Answer:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(200, piece)

    return await _asked(handle, streaming=False)


async def _asked(handler: Handler, **config: Any) -> Answer:
    """The model's answer. An error of ours is raised when the server has ended, so that it is not in a group."""
    async with GEMINI.serving(handler, **config) as (model, _):
        try:
            return await ask(model)
        except RepertoryError as error:
            failure = error
    raise failure


async def sent_back(answer: Answer) -> list[Part]:
    """The parts of the answer in the next request, as they go over the wire."""
    check_message(answer.message)
    results: list[ContentBlock] = [
        {"toolResult": {"toolUseId": block["toolUse"]["toolUseId"], "status": "success", "content": [{"text": "1"}]}}
        for block in answer.message["content"]
        if "toolUse" in block
    ]
    following: Message = {"role": "user", "content": results} if results else AGAIN
    async with GEMINI.serving(GEMINI.streaming(*GEMINI.text("ok")), model_id="gemini-3-flash") as (model, server):
        await ask(model, [*HELLO, answer.message, following])
        return [_as_answered(part) for part in server.requests[0].body["contents"][1]["parts"]]


def _as_answered(value: Any, key: str = "") -> Any:
    """A part of a request in the spelling of the answers. The SDK sends some names with underscores, and base64 in its
    other alphabet, all of which the service takes.
    """
    if key in ("args", "response"):
        return value
    if isinstance(value, dict):
        return {name: _as_answered(each, name) for name, each in ((_camel(name), value[name]) for name in value)}
    return value.replace("-", "+").replace("_", "/") if key in ("thoughtSignature", "data") else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def signature(value: str) -> ContentBlock:
    return {"reasoningContent": {"reasoningText": {"text": "", "signature": value}, "provider": "gemini"}}


def own(content: Part) -> ContentBlock:
    return {"providerContent": {"provider": "gemini", "content": content}}


# Signatures.


async def test_signatures_of_two_parts_are_never_joined(how: str) -> None:
    parts = [{**CODE, "thoughtSignature": ONE}, RAN, {**CODE, "thoughtSignature": TWO}, RAN, {"text": "Two."}]
    answer = await answered(how, *parts)
    assert answer.message["content"] == [*map(own, parts[:4]), {"text": "Two."}]
    assert await sent_back(answer) == parts


async def test_a_signature_of_a_text_goes_back_on_the_text(how: str) -> None:
    answer = await answered(how, {"text": "Four.", "thoughtSignature": ONE})
    assert answer.message["content"] == [{"text": "Four."}, signature(ONE)]
    assert await sent_back(answer) == [{"text": "Four.", "thoughtSignature": ONE}]


async def test_a_signature_without_text_goes_back_on_a_part_of_its_own(how: str) -> None:
    bare = {"text": "", "thoughtSignature": TWO}
    answer = await answered(how, {"text": "Four."}, bare)
    assert answer.message["content"] == [{"text": "Four."}, own(bare)]
    assert await sent_back(answer) == [{"text": "Four."}, bare]


@pytest.mark.parametrize("signed", [0, 1, 2])
async def test_text_in_pieces_stays_one_text_whichever_piece_is_signed(how: str, signed: int) -> None:
    parts: list[Part] = [{"text": "Forty"}, {"text": "-"}, {"text": "two."}]
    parts[signed]["thoughtSignature"] = ONE
    answer = await answered(how, *parts)
    assert answer.message["content"] == [{"text": "Forty-two."}, signature(ONE)]
    assert await sent_back(answer) == [{"text": "Forty-two.", "thoughtSignature": ONE}]


async def test_two_signed_texts_stay_two(how: str) -> None:
    parts = [{"text": "One.", "thoughtSignature": ONE}, {"text": "Two.", "thoughtSignature": TWO}]
    answer = await answered(how, *parts)
    assert answer.message["content"] == [{"text": "One."}, signature(ONE), {"text": "Two."}, signature(TWO)]
    assert await sent_back(answer) == parts


async def test_thoughts_keep_their_signature(how: str) -> None:
    parts = [
        {"text": "Hm", "thought": True, "thoughtSignature": ONE},
        {"text": ".", "thought": True},
        {"text": "4", "thoughtSignature": TWO},
    ]
    answer = await answered(how, *parts)
    thought = {"reasoningText": {"text": "Hm.", "signature": ONE}, "provider": "gemini"}
    assert answer.message["content"] == [{"reasoningContent": thought}, {"text": "4"}, signature(TWO)]
    assert await sent_back(answer) == [{"text": "Hm.", "thought": True, "thoughtSignature": ONE}, parts[2]]


async def test_a_bare_signature_of_a_thought_and_of_no_text_at_all_are_sent_as_they_came(how: str) -> None:
    parts: list[Part] = [
        {"text": "", "thought": True, "thoughtSignature": ONE},
        {"functionCall": {"id": "f1", "name": "add", "args": {}}, "thoughtSignature": ONE},
        {"text": "", "thoughtSignature": TWO},
    ]
    answer = await answered(how, *parts)
    assert await sent_back(answer) == parts


async def test_a_blank_text_keeps_its_signature(how: str) -> None:
    parts = [{"text": "Two."}, {**SEARCH, "thoughtSignature": ONE}, FOUND, {"text": "\n", "thoughtSignature": TWO}]
    assert await sent_back(await answered(how, *parts)) == parts


# Parts of tools that the service runs.


async def test_calls_of_the_services_own_tools_are_kept_and_never_run(how: str) -> None:
    parts = [{**SEARCH, "thoughtSignature": ONE}, {**FOUND, "thoughtSignature": TWO}, {"text": "It is so."}]
    answer = await answered(how, *parts)
    assert answer.message["content"] == [own(parts[0]), own(parts[1]), {"text": "It is so."}]
    assert answer.stop_reason == "end_turn"
    assert await sent_back(answer) == parts


async def test_an_empty_text_between_two_parts_is_nothing(how: str) -> None:
    answer = await answered(how, CODE, {"text": ""}, RAN, {"text": "2"})
    assert answer.message["content"] == [own(CODE), own(RAN), {"text": "2"}]


@pytest.mark.parametrize(("model_id", "vertexai"), [("gemini-2.5-flash", False), ("gemini-3-flash", True)])
def test_models_that_do_not_know_calls_of_own_tools_are_told_of_them(model_id: str, vertexai: bool) -> None:
    answer: Message = {"role": "assistant", "content": [own(SEARCH), own(FOUND), own(CODE), {"text": "Yes."}]}
    request = content_request(
        model_call({"model_id": model_id}, [*HELLO, answer, AGAIN], [], None, {}), vertexai=vertexai
    )
    parts = request["contents"][1]["parts"]
    assert parts == [
        {"text": '(The provider ran its tool GOOGLE_SEARCH_WEB: {"queries": ["a_b"]})'},
        CODE,
        {"text": "Yes."},
    ]


def test_a_call_that_never_got_its_response_is_left_out() -> None:
    answer: Message = {"role": "assistant", "content": [{"text": "Wait."}, own(SEARCH)]}
    request = content_request(model_call({"model_id": "gemini-3-flash"}, [*HELLO, answer, AGAIN], [], None, {}))
    assert request["contents"][1]["parts"] == [{"text": "Wait."}]


async def test_another_provider_is_told_in_words_what_the_service_ran(how: str) -> None:
    parts = [{**CODE, "thoughtSignature": ONE}, RAN, {"text": "2", "thoughtSignature": TWO}]
    answer = await answered(how, *parts)
    call = model_call({"model_id": "llama3.2"}, [*HELLO, answer.message, AGAIN], [], None, {})
    sent = str(chat_request(call)["messages"])
    assert "print(2)" in sent
    assert "OUTCOME_OK" in sent
    assert ONE not in sent
    assert TWO not in sent


# Media.


async def test_a_picture_of_an_answer_is_an_image(how: str) -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    parts: list[Part] = [
        {"text": "Here:"},
        {"inlineData": {"mimeType": "image/png", "data": data}, "thoughtSignature": ONE},
    ]
    answer = await answered(how, *parts)
    image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
    assert answer.message["content"] == [{"text": "Here:"}, image, signature(ONE)]
    assert await sent_back(answer) == parts


@pytest.mark.parametrize(
    ("media_type", "kind", "form"),
    [
        ("audio/L16;codec=pcm;rate=24000", "audio", "L16;codec=pcm;rate=24000"),
        ("audio/mpeg", "audio", "mp3"),
        ("video/quicktime", "video", "mov"),
        ("image/jpeg", "image", "jpeg"),
    ],
)
async def test_media_go_back_with_their_type(media_type: str, kind: str, form: str) -> None:
    answer = await answered("whole", {"inlineData": {"mimeType": media_type, "data": "AAAA"}})
    assert answer.message["content"] == [{kind: {"format": form, "source": {"bytes": b"\0\0\0"}}}]
    assert (await sent_back(answer))[0]["inlineData"]["mimeType"] == media_type


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}, "thoughtSignature": ONE},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thought": True, "thoughtSignature": ONE},
        {"fileData": {"mimeType": "image/png", "fileUri": "https://x.test/a"}},
    ],
    ids=["a document", "a picture of a thought", "a file"],
)
async def test_other_data_stay_in_the_services_form(how: str, part: Part) -> None:
    answer = await answered(how, part, {"text": "There."})
    assert answer.message["content"] == [own(part), {"text": "There."}]
    assert await sent_back(answer) == [part, {"text": "There."}]


# Sources.

GROUNDED: dict[str, Any] = {
    "webSearchQueries": ["sky"],
    "searchEntryPoint": {"renderedContent": "<b>sky</b>"},
    "groundingChunks": [
        {"web": {"uri": "https://x.test/1", "title": "One", "domain": "x.test"}},
        {"maps": {"uri": "https://maps.test/2", "title": "Two", "placeId": "places/2"}},
        {"retrievedContext": {"title": "Three", "text": "Blue.", "fileSearchStore": "fileSearchStores/3"}},
        {},
    ],
    "groundingSupports": [
        {"segment": {"endIndex": 9, "text": "It is so."}, "groundingChunkIndices": [0, 1, 3, 9]},
    ],
}


async def test_grounding_is_citations_of_the_text_and_is_kept_whole(how: str) -> None:
    bare = {"text": "", "thoughtSignature": ONE}
    answer = await answered(how, {"text": "It is so."}, bare, groundingMetadata=GROUNDED)
    cited, signed, kept = answer.message["content"]
    assert cited["citationsContent"] == {
        "content": [{"text": "It is so."}],
        "citations": [
            {
                "title": "One",
                "location": {"web": {"url": "https://x.test/1", "domain": "x.test"}},
                "supports": "It is so.",
            },
            {"title": "Two", "location": {"web": {"url": "https://maps.test/2"}}, "supports": "It is so."},
            {
                "title": "Three",
                "location": {"file": {"fileId": "fileSearchStores/3"}},
                "sourceContent": [{"text": "Blue."}],
            },
        ],
    }
    assert (signed, kept) == (own(bare), own({"groundingMetadata": GROUNDED}))
    assert await sent_back(answer) == [{"text": "It is so."}, bare]


async def test_recited_sources_and_read_pages_are_citations(how: str) -> None:
    recited = {"citationSources": [{"startIndex": 0, "endIndex": 5, "uri": "https://x.test/1"}, {}]}
    pages = [
        {"retrievedUrl": "https://x.test/1", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"},
        {"retrievedUrl": "https://x.test/2", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"},
        {"retrievedUrl": "https://x.test/3", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_ERROR"},
    ]
    fields = {"citationMetadata": recited, "urlContextMetadata": {"urlMetadata": pages}}
    answer = await answered(how, {"text": "It is so."}, **fields)
    citations: Any = answer.message["content"][0]["citationsContent"]["citations"]
    assert citations == [{"location": {"web": {"url": f"https://x.test/{number}"}}} for number in (1, 2)]


async def test_sources_behind_a_last_part_that_is_no_text_are_kept(how: str) -> None:
    answer = await answered(
        how, {"text": "So."}, CODE, RAN, groundingMetadata={"groundingChunks": GROUNDED["groundingChunks"][:1]}
    )
    assert answer.message["content"][0] == {"text": "So."}
    assert "https://x.test/1" in str(answer.message["content"][3])
    assert await sent_back(answer) == [{"text": "So."}, CODE, RAN]


# Function calls in pieces.


def piece_of_call(*args: Part, more: bool = True, **fields: Any) -> Part:
    call = {**fields, **({"partialArgs": list(args)} if args else {}), **({"willContinue": True} if more else {})}
    return {"functionCall": call}


CALLED = [
    {**piece_of_call(name="cook", id="f1"), "thoughtSignature": ONE},
    piece_of_call({"jsonPath": "$.recipe.steps[0].text", "stringValue": "Bo", "willContinue": True}),
    piece_of_call({"jsonPath": "$.recipe.steps[0].text", "stringValue": "il"}),
    piece_of_call(),
    piece_of_call({"jsonPath": "$.recipe.steps[1].text", "stringValue": "Eat"}),
    piece_of_call(
        {"jsonPath": "$.recipe['a \\'name\\'']", "numberValue": 2}, {"jsonPath": "$.half", "numberValue": 0.5}
    ),
    piece_of_call({"jsonPath": "$.hot", "boolValue": True}, {"jsonPath": "$.cold", "nullValue": "NULL_VALUE"}),
]
COOKED = {
    "recipe": {"steps": [{"text": "Boil"}, {"text": "Eat"}], "a 'name'": 2},
    "half": 0.5,
    "hot": True,
    "cold": None,
}


@pytest.mark.parametrize("end", [[{"functionCall": {}}], [{"text": ""}], []], ids=["empty", "other part", "none"])
async def test_a_call_in_pieces_is_put_together(how: str, end: list[Part]) -> None:
    answer = await answered(how, *CALLED, *end)
    use = {"toolUseId": "f1", "name": "cook", "input": COOKED, "reasoningSignature": ONE}
    assert answer.message["content"] == [{"toolUse": use}]
    assert answer.stop_reason == "tool_use"
    assert (await sent_back(answer))[0] == {
        "functionCall": {"id": "f1", "name": "cook", "args": COOKED},
        "thoughtSignature": ONE,
    }


async def test_two_calls_in_pieces_are_two(how: str) -> None:
    second = [piece_of_call(name="cook"), piece_of_call({"jsonPath": "$.hot", "boolValue": False}, more=False)]
    answer = await answered(how, *CALLED, {"functionCall": {}}, *second, {"functionCall": {"name": "eat"}})
    inputs = [block["toolUse"]["input"] for block in answer.message["content"]]
    assert inputs == [COOKED, {"hot": False}, {}]
    assert len({block["toolUse"]["toolUseId"] for block in answer.message["content"]}) == 3


async def test_a_call_that_the_token_limit_cut_off_is_dropped(how: str) -> None:
    answer = await answered(how, {"text": "Let me."}, *CALLED[:2], finish="MAX_TOKENS")
    assert (answer.message["content"], answer.truncated) == ([{"text": "Let me."}], True)


@pytest.mark.parametrize("path", ["recipe", "$.a[99999]", "$..a", "$.a[*]", "$.hot.b"])
async def test_a_path_that_leads_nowhere_is_an_error(path: str) -> None:
    pieces = [piece_of_call({"jsonPath": "$.hot", "boolValue": True}, name="cook")]
    with pytest.raises(ModelFailed, match="path"):
        await answered("streamed", *pieces, piece_of_call({"jsonPath": path, "boolValue": True}, more=False))


# Stop reasons.


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("SAFETY", "guardrail_intervened"),
        ("MODEL_ARMOR", "content_filtered"),
        ("LANGUAGE", "content_filtered"),
        ("RECITATION", "content_filtered"),
        ("IMAGE_SAFETY", "content_filtered"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filtered"),
        ("IMAGE_RECITATION", "content_filtered"),
        ("OTHER", "other"),
        ("NO_IMAGE", "no_image"),
        ("IMAGE_OTHER", "image_other"),
        ("TOO_MANY_TOOL_CALLS", "too_many_tool_calls"),
        ("UNEXPECTED_TOOL_CALL", "unexpected_tool_call"),
    ],
)
async def test_only_a_stop_is_the_end_of_a_turn(how: str, finish: str, stop: str) -> None:
    assert (await answered(how, finish=finish)).stop_reason == stop


@pytest.mark.filterwarnings("ignore:SOMETHING_NEW is not a valid FinishReason:UserWarning")
async def test_an_unknown_reason_is_passed_on(how: str) -> None:
    assert (await answered(how, {"text": "So"}, finish="SOMETHING_NEW")).stop_reason == "something_new"


async def test_a_call_of_a_tool_that_there_is_not_is_a_use_of_it(how: str) -> None:
    answer = await answered(how, {"functionCall": {"name": "list_files", "args": {}}}, finish="UNEXPECTED_TOOL_CALL")
    assert answer.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("finish", "failure"),
    [
        ("MALFORMED_FUNCTION_CALL", ModelStreamBroken),
        ("MALFORMED_RESPONSE", ModelStreamBroken),
        ("MISSING_THOUGHT_SIGNATURE", ModelFailed),
        ("PUP_LIMITED_DISABLED", ModelFailed),
    ],
)
async def test_what_is_no_answer_is_an_error_that_names_the_reason(
    how: str, finish: str, failure: type[Exception]
) -> None:
    """A new try is worth it where the model made what nobody can read, and not where the request is at fault."""
    with pytest.raises(failure, match=finish):
        await answered(how, finish=finish)
    reader = ContentReader("seed")
    list(reader.feed({"candidates": [{"finish_reason": finish, "finish_message": "It was print(add("}]}))
    with pytest.raises(failure, match="It was print"):
        list(reader.finish())


@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "MODEL_ARMOR", "JAILBREAK"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_blocked_prompt_is_refused(reason: str, streaming: bool) -> None:
    feedback = {"promptFeedback": {"blockReason": reason, "blockReasonMessage": "No."}}

    async def handle(exchange: Exchange) -> None:
        if streaming:
            await exchange.stream(event(feedback), media=GEMINI.media)
        else:
            await exchange.answer(200, feedback)

    with pytest.raises(ModelRefused, match=f"{reason} No\\.") as caught:
        await _asked(handle, streaming=streaming)
    assert caught.value.fields["refused_prompt"] is True


@pytest.mark.parametrize(
    "spoiled", [b"data: nope\n\n", event({"candidates": 5}), event({"error": {"code": 503, "message": "x"}})]
)
async def test_a_stream_that_the_sdk_cannot_read_is_unwound(spoiled: bytes) -> None:
    """The SDK drops its readers half way, of which trio warns, and the connection with them."""
    with pytest.raises(RepertoryError):
        await _asked(GEMINI.streaming(spoiled, event(gemini_piece({"text": "So"}))))
    gc.collect()
