"""Items of the Responses API: what is stored of them, and what goes back, whole and streamed alike."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from repertory.backends.models.anthropic import messages_arguments
from repertory.backends.models.openai import completion_arguments
from repertory.backends.models.provider import model_call
from repertory.backends.models.response_reader import ResponseReader
from repertory.backends.models.responses import INCLUDE, RESPONSES, OpenAIResponsesModel, response_arguments
from repertory.core.answer import Answer, Assembler
from repertory.core.provider_content import MCP_APPROVAL
from repertory.errors import ModelFailed, ModelRefused, ModelStreamBroken
from tests.backends.models.sdk_services import HELLO, ask, event
from tests.backends.models.sdk_services import RESPONSES as SERVICE
from tests.backends.models.wire_server import Exchange

PNG = b"\x89PNG\r\n\x1a\npicture"
QUESTION: Any = {"role": "user", "content": [{"text": "And?"}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z0FB"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
FILES = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": None}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": "1",
    "container_id": "c",
    "outputs": None,
}
CALLED = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "n", "arguments": "{}", "output": "1"}
LISTED = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": [{"name": "n"}]}
FOUND = {"type": "tool_search_call", "id": "tsc_1", "execution": "server", "call_id": None, "arguments": {}}
TOOLS_FOUND = {"type": "tool_search_output", "id": "tso_1", "execution": "server", "call_id": None, "tools": []}
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_s",
    "action": {"commands": ["ls"]},
    "environment": {"type": "container_reference", "container_id": "c"},
}
SHELL_OUTPUT = {"type": "shell_call_output", "id": "sho_1", "call_id": "call_s", "output": [{"stdout": "a"}]}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Z0FC"}
UNKNOWN = {"type": "something_new", "id": "x_1", "inside": {"a": [1, None]}}


def said(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": fields.pop("annotations", [])}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part], **fields}


def call(**fields: Any) -> dict[str, Any]:
    made = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
    return {**made, "status": "completed", **fields}


def response(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "error": None, "output": list(items), **fields}


def events_of(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The stream that carries the items."""
    made: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        begun = {**item, "status": "in_progress", **({"arguments": ""} if "arguments" in item else {})}
        made.append({"type": "response.output_item.added", "output_index": place, "item": begun})
        for part in item.get("summary", ()):
            delta = {"output_index": place, "delta": part["text"]}
            made.append({"type": "response.reasoning_summary_text.delta", **delta})
        for part in item.get("content", ()) if item["type"] == "message" else ():
            for piece in (part["text"][:3], part["text"][3:]):
                if piece:
                    made.append({"type": "response.output_text.delta", "output_index": place, "delta": piece})
            for note in part["annotations"]:
                kind = "response.output_text.annotation.added"
                made.append({"type": kind, "output_index": place, "annotation": note})
        made.append({"type": "response.output_item.done", "output_index": place, "item": item})
    return [*made, {"type": "response.completed", "response": response(*items, **fields)}]


def assembled(events: list[Any]) -> Answer:
    assembler = Assembler()
    for each in events:
        assembler.feed(each)
    return assembler.finish()


def read(*items: dict[str, Any], **fields: Any) -> Answer:
    """The answer, which is the same whole and streamed."""
    reader = ResponseReader(RESPONSES)
    streamed = [each for piece in events_of(*items, **fields) for each in reader.feed(piece)]
    answer = assembled([*streamed, *reader.finish()])
    reader = ResponseReader(RESPONSES)
    whole = assembled([*reader.whole(response(*items, **fields)), *reader.finish()])
    assert whole.message == answer.message
    assert whole.stop_reason == answer.stop_reason
    return answer


def part(content: dict[str, Any]) -> dict[str, Any]:
    return {"providerContent": {"provider": "openai", "content": content}}


def sent(*messages: Any, **config: Any) -> list[dict[str, Any]]:
    arguments = response_arguments(model_call({"model_id": "m", **config}, [*HELLO, *messages], None, None, {}))
    return arguments["input"][1:]


def back(answer: Answer) -> list[dict[str, Any]]:
    """The items that an answer becomes, in the next request and in the one after it."""
    items = sent(answer.message, QUESTION)
    again = sent(answer.message, QUESTION, {"role": "assistant", "content": [{"text": "b"}]}, QUESTION)
    assert again[: len(items)] == items
    return items[:-1]


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": words}], **fields}


@pytest.mark.parametrize(
    "items",
    [
        [SEARCH],
        [FILES],
        [CODE],
        [LISTED, CALLED],
        [FOUND, TOOLS_FOUND],
        [SHELL, SHELL_OUTPUT],
        [UNKNOWN],
        [REASONING, SEARCH, {**REASONING, "id": "rs_2"}, CODE],
    ],
    ids=lambda items: items[0]["type"],
)
def test_what_the_service_has_done_stays_as_it_came_and_goes_back_so(items: list[dict[str, Any]]) -> None:
    answer = read(*items, said("Done."))
    assert answer.message["content"] == [*map(part, items), {"text": "Done."}]
    assert answer.stop_reason == "end_turn"
    assert back(answer) == [*items, text("Done.")]


def test_what_the_service_has_done_is_nothing_for_another_one_or_a_text() -> None:
    answer = read(REASONING, SEARCH, CODE, said("Done."))
    messages: Any = [*HELLO, answer.message, QUESTION]
    call = model_call({"model_id": "m", "max_tokens": 9}, messages, None, None, {})
    chat, claude = completion_arguments(call), messages_arguments(call)
    for request in (chat, claude):
        assert "rs_1" not in str(request)
        assert "The provider searched the web: x" in str(request)
        assert "The provider ran code" in str(request)


def test_reasoning_is_shown_and_goes_back_encrypted_in_its_place() -> None:
    item = {**REASONING, "summary": [{"type": "summary_text", "text": "Hm."}]}
    answer = read(item, call())
    shown = {"reasoningContent": {"reasoningText": {"text": "Hm."}, "provider": "openai"}}
    use = {"toolUse": {"toolUseId": "call_1", "name": "f", "input": {"a": 1}}}
    assert answer.message["content"] == [shown, part(item), use]
    result: Any = {"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "4"}]}}
    items = sent(answer.message, {"role": "user", "content": [result]})
    assert [each["type"] for each in items] == ["reasoning", "function_call", "function_call_output"]
    assert items[0] == item


def test_reasoning_that_the_service_could_not_read_again_is_not_kept() -> None:
    bare = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    answer = read(bare, said("Done."))
    assert [next(iter(block)) for block in answer.message["content"]] == ["reasoningContent", "text"]
    assert back(answer) == [text("Done.")]


def test_reasoning_without_what_it_led_to_is_not_sent() -> None:
    """The service refuses it. A limit has cut the answer off."""
    answer = read(REASONING, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert answer.stop_reason == "max_tokens"
    assert back(answer) == [text("[blank text]")]


def test_reasoning_goes_back_as_the_end_of_its_item_has_it() -> None:
    """The one at the beginning of the item may be incomplete, and that of the response is encrypted anew."""
    pieces = events_of(REASONING, said("Done."))
    pieces[0]["item"] = {**REASONING, "encrypted_content": "Z0"}
    pieces[-1]["response"] = response({**REASONING, "encrypted_content": "bmV3"}, said("Done."))
    reader = ResponseReader(RESPONSES)
    answer = assembled([*(each for piece in pieces for each in reader.feed(piece)), *reader.finish()])
    assert back(answer)[0] == REASONING


def test_the_phase_of_a_message_survives() -> None:
    answer = read(said("I look.", phase="commentary"), SEARCH, said("Done.", phase="final_answer"))
    assert answer.message["content"] == [
        part({"type": "message", "phase": "commentary"}),
        {"text": "I look."},
        part(SEARCH),
        part({"type": "message", "phase": "final_answer"}),
        {"text": "Done."},
    ]
    assert back(answer) == [text("I look.", phase="commentary"), SEARCH, text("Done.", phase="final_answer")]
    two = read(said("I look.", phase="commentary"), said("Done.", phase="final_answer"))
    assert back(two) == [text("I look.", phase="commentary"), text("Done.", phase="final_answer")]


def test_what_a_call_has_beside_its_arguments_goes_back_with_it() -> None:
    program = {"type": "program", "id": "cm_1", "call_id": "call_p", "code": "f()", "fingerprint": "Z0FB"}
    caller = {"type": "program", "caller_id": "call_p"}
    answer = read(REASONING, program, call(caller=caller, namespace="n"))
    assert answer.stop_reason == "tool_use"
    result: Any = {"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "4"}]}}
    items = sent(answer.message, {"role": "user", "content": [result]})
    made = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
    assert items == [
        REASONING,
        program,
        {**made, "namespace": "n", "caller": caller},
        {"type": "function_call_output", "call_id": "call_1", "output": "4", "caller": caller},
    ]


def test_what_stands_before_a_compaction_is_not_sent() -> None:
    answer = read(COMPACTION, said("Done."))
    assert answer.message["content"] == [part(COMPACTION), {"text": "Done."}]
    before: Any = [{"role": "assistant", "content": [{"text": "before"}]}, QUESTION]
    arguments = response_arguments(
        model_call({"model_id": "m"}, [*HELLO, *before, answer.message, QUESTION], None, None, {})
    )
    question = {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}
    assert arguments["input"] == [COMPACTION, text("Done."), question]


def test_a_compaction_cuts_nothing_off_that_a_result_needs() -> None:
    answer = read(call(), COMPACTION)
    result: Any = {"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "4"}]}}
    items = sent(answer.message, {"role": "user", "content": [result]})
    assert [each.get("type") for each in items] == ["function_call", "compaction", "function_call_output"]


@pytest.mark.parametrize("form", ["png", None])
def test_a_picture_is_a_block_and_its_item_goes_back_with_it(form: str | None) -> None:
    data = base64.b64encode(PNG).decode()
    bare = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    bare |= {"output_format": form} if form else {}
    answer = read(REASONING, {**bare, "result": data}, said("Look."))
    picture = {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert answer.message["content"] == [part(REASONING), part(bare), picture, {"text": "Look."}]
    assert data not in json.dumps(answer.message, default=str)
    assert back(answer) == [REASONING, {**bare, "result": data}, text("Look.")]


def test_a_picture_without_bytes_stays_as_it_came_and_is_not_sent() -> None:
    """Nothing is stored at the service, so it would find no picture by the id."""
    failed = {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": None}
    answer = read(failed, said("No."))
    assert answer.message["content"] == [part(failed), {"text": "No."}]
    assert back(answer) == [failed, text("No.")]
    lost: Any = {"role": "assistant", "content": [part({"type": "image_generation_call", "id": "ig_1"}), {"text": "a"}]}
    assert sent(lost, QUESTION)[0] == text("a")


def test_a_picture_of_another_provider_is_a_note() -> None:
    foreign: Any = {"role": "assistant", "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}]}
    assert sent(foreign, QUESTION)[0] == text("(An image stood here.)")


def test_sources_of_every_kind_stand_with_the_text() -> None:
    notes = [
        {"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 0, "end_index": 1},
        {"type": "file_citation", "file_id": "file_1", "filename": "a.pdf", "index": 3},
        {"type": "container_file_citation", "container_id": "c", "file_id": "cfile_1", "filename": "a.csv"},
        {"type": "something_new"},
    ]
    (block,) = read(said("It is so.", annotations=notes)).message["content"]
    cited = block["citationsContent"]["citations"]
    assert [each["location"] for each in cited] == [
        {"web": {"url": "https://a.test"}},
        {"file": {"fileId": "file_1", "filename": "a.pdf"}},
        {"container": {"containerId": "c", "fileId": "cfile_1", "filename": "a.csv"}},
    ]
    assert [each["title"] for each in cited] == ["A", "a.pdf", "a.csv"]


APPROVAL = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "n", "arguments": "{}"}


@pytest.mark.parametrize(
    ("status", "content", "decision"),
    [
        ("success", [{"json": {"approve": True}}], {"approve": True}),
        ("success", [{"json": {"approve": True, "reason": "fine"}}], {"approve": True, "reason": "fine"}),
        ("success", [{"json": {"approve": False, "reason": "no"}}], {"approve": False, "reason": "no"}),
        (
            "error",
            [{"json": {"approve": True}}, {"text": "late"}],
            {"approve": False, "reason": '{"approve": true}\nlate'},
        ),
        ("error", [{"text": "cancelled"}], {"approve": False, "reason": "cancelled"}),
        ("success", [{"text": "yes"}], {"approve": False, "reason": "yes"}),
        ("success", [{"json": {"approve": "yes"}}], {"approve": False, "reason": '{"approve": "yes"}'}),
    ],
)
def test_a_person_approves_a_call_of_the_service(status: Any, content: Any, decision: dict[str, Any]) -> None:
    answer = read(LISTED, APPROVAL)
    assert answer.message["content"] == [
        part(LISTED),
        {"toolUse": {"toolUseId": "mcpr_1", "name": MCP_APPROVAL, "input": APPROVAL}},
    ]
    assert answer.stop_reason == "tool_use"
    result: Any = {"toolResult": {"toolUseId": "mcpr_1", "status": status, "content": content}}
    items = sent(answer.message, {"role": "user", "content": [result]})
    reply = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", **decision}
    assert items == [LISTED, APPROVAL, reply]


def test_an_approval_with_a_long_id_is_answered_by_its_own() -> None:
    asked = {**APPROVAL, "id": f"mcpr_{'x' * 80}"}
    answer = read(asked)
    result: Any = {
        "toolResult": {"toolUseId": asked["id"], "status": "success", "content": [{"json": {"approve": True}}]}
    }
    items = sent(answer.message, {"role": "user", "content": [result]})
    assert items[0] == asked
    assert items[1]["approval_request_id"] == asked["id"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "code", "input": "x"},
            "custom_tool_call code",
        ),
        (
            {"type": "tool_search_call", "id": "t", "call_id": "c", "execution": "client", "arguments": {}},
            "tool_search",
        ),
        (
            {"type": "shell_call", "id": "s", "call_id": "c", "action": {}, "environment": {"type": "local"}},
            "shell_call",
        ),
        ({"type": "local_shell_call", "id": "s", "call_id": "c", "action": {}}, "local_shell_call"),
        ({"type": "apply_patch_call", "id": "a", "call_id": "c", "operation": {}}, "apply_patch_call"),
        (
            {"type": "computer_call", "id": "c", "call_id": "c", "action": {}, "pending_safety_checks": []},
            "computer_call",
        ),
    ],
)
def test_what_nobody_here_can_do_is_named(item: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFailed, match=words):
        read(said("I look."), REASONING, item)


def test_a_service_that_goes_on_to_speak_has_run_its_custom_tool_itself() -> None:
    """xAI searches so."""
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "x_keyword_search", "input": "{}"}
    answer = read(item, said("Done."))
    assert answer.message["content"] == [part(item), {"text": "Done."}]
    messages: Any = [*HELLO, answer.message, QUESTION]
    assert item not in response_arguments(model_call({"model_id": "m"}, messages, None, None, {}))["input"]
    there = {"providerContent": {"provider": "xai-responses", "content": item}}
    messages[1] = {"role": "assistant", "content": [there, {"text": "Done."}]}
    assert item in response_arguments(model_call({"model_id": "m"}, messages, None, None, {}), "xai-responses")["input"]


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled", "failed"])
def test_a_response_that_is_not_finished_is_no_answer(status: str) -> None:
    with pytest.raises(ModelFailed) as caught:
        read(status=status)
    assert caught.value.fields["status"] == status


def test_a_failed_response_says_why() -> None:
    with pytest.raises(ModelRefused, match="filter") as caught:
        read(status="failed", error={"code": "content_filter", "message": "policy"})
    assert caught.value.fields["refused_prompt"] is True


def test_a_part_whose_end_never_came_is_read_from_the_response() -> None:
    pieces = [each for each in events_of(LISTED, said("Done.")) if each.get("item") is not LISTED]
    reader = ResponseReader(RESPONSES)
    answer = assembled([*(each for piece in pieces for each in reader.feed(piece)), *reader.finish()])
    assert answer.message["content"] == [part(LISTED), {"text": "Done."}]
    pieces[-1]["response"] = response()
    reader = ResponseReader(RESPONSES)
    answer = assembled([*(each for piece in pieces for each in reader.feed(piece)), *reader.finish()])
    assert answer.message["content"] == [{"text": "Done."}]


def test_text_that_was_never_streamed_is_read_from_the_end_of_its_item() -> None:
    pieces = [each for each in events_of(said("Done.")) if "delta" not in each]
    reader = ResponseReader(RESPONSES)
    answer = assembled([*(each for piece in pieces for each in reader.feed(piece)), *reader.finish()])
    assert answer.message["content"] == [{"text": "Done."}]


def test_a_stream_without_an_end_is_broken() -> None:
    reader = ResponseReader(RESPONSES)
    with pytest.raises(ModelStreamBroken):
        _ = [*(each for piece in events_of(SEARCH)[:-1] for each in reader.feed(piece)), *reader.finish()]


@pytest.mark.parametrize(
    ("details", "counted"),
    [
        ({"cached_tokens": 4, "cache_write_tokens": 5}, (1, 4, 5)),
        ({"cached_tokens": 0, "cache_write_tokens": 9}, (1, None, 9)),
        ({"cached_tokens": 40}, (10, 40, None)),
    ],
)
def test_tokens_that_were_written_to_the_cache_are_counted_apart(details: Any, counted: Any) -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "input_tokens_details": details}
    found = read(said("a"), usage=usage).usage
    shown = (found["inputTokens"], found.get("cacheReadInputTokens"), found.get("cacheWriteInputTokens"))
    assert (shown, found["totalTokens"]) == (counted, 12)


@pytest.mark.parametrize(
    ("config", "include"),
    [
        ({"model_id": "gpt-5.4"}, INCLUDE),
        ({"model_id": "gpt-4o-mini"}, None),
        ({"model_id": "gpt-5.4", "params": {"include": ["file_search_call.results"]}}, ["file_search_call.results"]),
        ({"model_id": "gpt-5.4", "params": {"include": None}}, None),
    ],
)
def test_reasoning_is_asked_for_in_a_form_that_goes_back(config: dict[str, Any], include: Any) -> None:
    arguments = response_arguments(model_call(config, HELLO, None, None, {}))
    assert arguments.get("include") == include
    assert arguments["store"] is False


@pytest.mark.parametrize(("size", "same"), [(64, True), (65, False)])
def test_ids_of_calls_have_at_most_64_characters(size: int, same: bool) -> None:
    given = "c" * size
    use: Any = {"toolUse": {"toolUseId": given, "name": "f", "input": {}}}
    result: Any = {"toolResult": {"toolUseId": given, "status": "success", "content": [{"text": "4"}]}}
    made, output = sent({"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})
    assert made["call_id"] == output["call_id"]
    assert (made["call_id"] == given) is same
    assert len(made["call_id"]) <= 64


# Over the wire.


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_model_that_has_no_such_reasoning_is_asked_without_it_from_then_on() -> None:
    async def handle(exchange: Exchange) -> None:
        if "include" in exchange.body:
            await exchange.answer(400, SERVICE.error("x", "Encrypted content is not supported with this model."))
        else:
            await exchange.stream(*SERVICE.text("ok"), media=SERVICE.media)

    async with SERVICE.serving(handle) as (model, server):
        for _ in range(2):
            assert (await ask(model)).message["content"] == [{"text": "ok"}]
    assert ["include" in each.body for each in server.requests] == [True, False, False]


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize(
    "words",
    [
        "The encrypted content for item rs_1 could not be verified.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    ],
)
async def test_reasoning_that_the_service_cannot_read_does_not_end_the_conversation(words: str) -> None:
    """Such as that of another account."""

    async def handle(exchange: Exchange) -> None:
        if any(item.get("type") == "reasoning" for item in exchange.body["input"]):
            await exchange.answer(400, SERVICE.error("x", words))
        else:
            await exchange.stream(*SERVICE.text("ok"), media=SERVICE.media)

    messages: Any = [*HELLO, read(REASONING, SEARCH, said("Done.")).message, QUESTION]
    async with SERVICE.serving(handle) as (model, server):
        assert (await ask(model, messages)).message["content"] == [{"text": "ok"}]
    assert SEARCH in server.requests[1].body["input"]


@pytest.mark.anyio
@pytest.mark.real_time
async def test_another_refusal_is_told_at_once() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(400, SERVICE.error("x", "bad"))

    async with SERVICE.serving(handle) as (model, server):
        with pytest.raises(ModelFailed, match="bad"):
            await ask(model)
    assert len(server.requests) == 1


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize("streaming", [True, False])
async def test_items_go_back_over_the_wire_however_the_bytes_are_cut(streaming: bool) -> None:
    items = [REASONING, SEARCH, said("Done.", phase="final_answer")]

    async def handle(exchange: Exchange) -> None:
        if not streaming:
            await exchange.answer(200, response(*items))
            return
        data = b"".join(map(event, events_of(*items)))
        await exchange.stream(*(data[at : at + 17] for at in range(0, len(data), 17)), media=SERVICE.media)

    async with SERVICE.serving(handle, streaming=streaming) as (model, server):
        answer = await ask(model)
        await ask(model, [*HELLO, answer.message, QUESTION])
        await ask(
            model, [*HELLO, answer.message, QUESTION, {"role": "assistant", "content": [{"text": "b"}]}, QUESTION]
        )
        second, third = (each.body["input"] for each in server.requests[1:])
    assert second[1:4] == [REASONING, SEARCH, text("Done.", phase="final_answer")]
    assert third[: len(second)] == second


def test_an_item_is_sent_once() -> None:
    """The service refuses a second one of the same id, as a repeated answer has it."""
    answer = read(REASONING, SEARCH, said("Done."))
    items = sent(answer.message, QUESTION, answer.message, QUESTION)
    question = {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}
    assert items == [REASONING, SEARCH, text("Done."), question, text("Done."), question]


def test_reasoning_is_not_left_alone_by_a_call_that_is_not_sent() -> None:
    asked = {"type": "apply_patch_call", "id": "a", "call_id": "c", "operation": {}}
    answer: Any = {"role": "assistant", "content": [{"text": "a"}, part(REASONING), part(asked)]}
    assert [each.get("role") for each in sent(answer, QUESTION)] == ["assistant", "user"]


def test_reasoning_in_plain_text_goes_back_to_a_service_that_has_it_so() -> None:
    plain = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    answer = read(plain, said("Done."))
    assert back(answer) == [text("Done.")]
    there: Any = [part(plain), {"text": "Done."}]
    there[0]["providerContent"]["provider"] = "deepseek-responses"
    messages: Any = [*HELLO, {"role": "assistant", "content": there}, QUESTION]
    call_to_deepseek = model_call({"model_id": "m"}, messages, None, None, {})
    assert plain in response_arguments(call_to_deepseek, "deepseek-responses")["input"]


def test_a_part_in_a_users_message_is_not_sent() -> None:
    prompt: Any = {"role": "user", "content": [part(SEARCH), {"text": "And?"}]}
    assert sent({"role": "assistant", "content": [{"text": "a"}]}, prompt)[1]["content"] == [
        {"type": "input_text", "text": "And?"}
    ]


def test_parts_of_another_service_with_this_protocol_are_not_sent() -> None:
    """Each service can read its own encrypted reasoning alone."""
    answer = read(REASONING, said("Done."))
    call_to_xai = model_call({"model_id": "grok-4"}, [*HELLO, answer.message, QUESTION], None, None, {})
    assert [each.get("type") for each in response_arguments(call_to_xai, "xai-responses")["input"]] == [None] * 3
    model = OpenAIResponsesModel({"base_url": "https://api.x.ai/v1", "api_key": "key"})
    assert model._provider == "xai-responses"
    assert OpenAIResponsesModel({"base_url": "http://localhost:1/v1"})._provider == "openai"


@pytest.mark.parametrize("item", [REASONING, SEARCH, SHELL_OUTPUT, UNKNOWN], ids=lambda item: item["type"])
@pytest.mark.parametrize("name", ["id", "call_id", "approval_request_id"])
def test_an_item_whose_id_is_no_text_is_no_answer(item: dict[str, Any], name: str) -> None:
    for odd in ({"a": 1}, [1], 5):
        with pytest.raises(ModelFailed, match="each id"):
            list(ResponseReader(RESPONSES).feed({"type": "response.output_item.done", "item": {**item, name: odd}}))
