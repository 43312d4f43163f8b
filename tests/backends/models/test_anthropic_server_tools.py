"""What Anthropic's own servers do in an answer: stored as it came, sent back unchanged, and never run as a tool."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from repertory.backends.models.anthropic import (
    AnthropicConfig,
    MessagesReader,
    messages_arguments,
    without_waiting_code,
)
from repertory.backends.models.bedrock import converse_request
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message
from repertory.errors import ModelStreamBroken
from tests.backends.models.sdk_services import ANTHROPIC, ask, block, message_end, message_start
from tests.backends.models.wire_server import Exchange, Handler

wire = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

HELLO: Message = {"role": "user", "content": [{"text": "Hello"}]}
MORE: Message = {"role": "user", "content": [{"text": "And now?"}]}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "six"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "EqA="}],
}
CODE = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {"code": "1 + 1"}}
RAN = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_2",
    "content": {"type": "code_execution_result", "stdout": "2\n", "stderr": "", "return_code": 0, "content": []},
}
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "s", "input": {"a": 1}}
MCP_SAID = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []}
NEW = {"type": "something_new", "secret": [1, {"b": None}]}
FILE = {"type": "container_upload", "file_id": "file_1"}
SUMMARY = {"type": "compaction", "content": "Summary."}
CONTAINER = {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def stored(native: dict[str, Any]) -> Any:
    return {"providerContent": {"provider": "anthropic", "content": native}}


def whole(*blocks: dict[str, Any], stop_reason: str = "end_turn", **fields: Any) -> Answer:
    reader, assembler = MessagesReader(), Assembler()
    usage = fields.pop("usage", {"input_tokens": 1, "output_tokens": 2})
    for ours in reader.whole({"content": list(blocks), "stop_reason": stop_reason, "usage": usage, **fields}):
        assembler.feed(ours)
    for ours in reader.finish():
        assembler.feed(ours)
    return assembler.finish()


def read(*events: dict[str, Any]) -> Answer:
    reader, assembler = MessagesReader(), Assembler()
    for event in events:
        for ours in reader.feed(event):
            assembler.feed(ours)
    for ours in reader.finish():
        assembler.feed(ours)
    return assembler.finish()


def streamed(*blocks: dict[str, Any], stop_reason: str = "end_turn") -> list[bytes]:
    """The blocks as the service streams them, with inputs in pieces."""
    events = [message_start()]
    for index, given in enumerate(blocks):
        if "input" not in given:
            events += block(index, given)
            continue
        said = json.dumps(given["input"])
        pieces = ["", said[:3], said[3:]]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events += block(index, {**given, "input": {}}, *deltas)
    return [*events, *message_end(stop_reason)]


def sent(*messages: Message, config: AnthropicConfig | None = None, **options: Any) -> dict[str, Any]:
    settings: AnthropicConfig = {"model_id": "m", "max_tokens": 9, **(config or {})}
    return messages_arguments(model_call(settings, messages, None, None, options))


def kinds(message: dict[str, Any]) -> list[str]:
    return [each["type"] for each in message["content"]]


EVERYTHING = (text("Let me see."), SEARCH, FOUND, CODE, RAN, MCP, MCP_SAID, NEW, FILE, text("Six."))


def test_what_the_provider_ran_is_stored_in_order_and_goes_back_unchanged() -> None:
    answer = whole(*EVERYTHING)
    natives = [stored(native) for native in EVERYTHING[1:-1]]
    assert answer.message["content"] == [{"text": "Let me see."}, *natives, {"text": "Six."}]
    for later in ([MORE], [MORE, {"role": "assistant", "content": [{"text": "Yes."}]}, MORE]):
        assert sent(HELLO, answer.message, *cast("Any", later))["messages"][1]["content"] == list(EVERYTHING)


class TestOnTheWire:
    pytestmark = wire

    @pytest.mark.parametrize("size", [1, 7, 100_000])
    async def test_a_stream_in_odd_pieces_stores_what_a_whole_answer_does(self, size: int) -> None:
        said = b"".join(streamed(*EVERYTHING))

        async def handle(exchange: Exchange) -> None:
            pieces = [said[at : at + size] for at in range(0, len(said), size)]
            await exchange.stream(*pieces, media="text/event-stream")

        async with ANTHROPIC.serving(handle) as (model, _):
            assert (await ask(model)).message == whole(*EVERYTHING).message

    async def test_a_whole_answer_is_stored_as_json_by_the_names_of_the_service(self) -> None:
        """The SDK makes dates of times, and renames fields that are words of Python."""
        hop = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
        body = {**ANTHROPIC.whole, "content": [hop, text("Hello")], "container": CONTAINER}

        async def handle(exchange: Exchange) -> None:
            await exchange.answer(200, body)

        async with ANTHROPIC.serving(handle, streaming=False) as (model, _):
            content = (await ask(model)).message["content"]
        assert content == [stored(hop), {"text": "Hello"}, stored({"type": "container", **CONTAINER})]

    @pytest.mark.parametrize("refusal", ["container container_1 not found", "Container has expired"])
    async def test_a_container_that_is_gone_does_not_end_the_conversation(self, refusal: str) -> None:
        waiting: list[Handler] = []

        async def refuse(exchange: Exchange) -> None:
            await exchange.answer(400, ANTHROPIC.error("invalid_request_error", refusal))

        async def answer(exchange: Exchange) -> None:
            await exchange.stream(*ANTHROPIC.text("Hello"), media="text/event-stream")

        async def handle(exchange: Exchange) -> None:
            await waiting.pop(0)(exchange)

        waiting += [refuse, answer]
        told = whole(text("Done."), container=CONTAINER).message
        async with ANTHROPIC.serving(handle) as (model, server):
            assert (await ask(model, [HELLO, told, MORE])).message["content"] == [{"text": "Hello"}]
        assert [request.body.get("container") for request in server.requests] == ["container_1", None]


def test_an_input_that_was_cut_off_is_left_out() -> None:
    """The service would refuse half of it."""
    answer = read(
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": text("Hm")},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**SEARCH, "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"que'}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {}},
        {"type": "message_stop"},
    )
    assert answer.message["content"] == [{"text": "Hm"}]


def test_a_use_without_its_result_goes_back_while_the_provider_is_still_at_it() -> None:
    paused = whole(text("Searching."), SEARCH, stop_reason="pause_turn")
    assert paused.stop_reason == "pause_turn"
    assert kinds(sent(HELLO, paused.message)["messages"][-1]) == ["text", "server_tool_use"]
    answered = whole(FOUND, text("Six.")).message
    assert [kinds(each) for each in sent(HELLO, paused.message, answered, MORE)["messages"][1:]] == [
        ["text", "server_tool_use"],
        ["web_search_tool_result", "text"],
        ["text"],
    ]


def test_a_use_that_never_got_its_result_is_left_out_behind_any_other_message() -> None:
    paused = whole(text("Searching."), SEARCH, stop_reason="pause_turn").message
    assert kinds(sent(HELLO, paused, MORE)["messages"][1]) == ["text"]
    assert kinds(sent(HELLO, whole(SEARCH).message, MORE)["messages"][1]) == ["text"]
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    both = whole(SEARCH, use, stop_reason="tool_use").message
    result: Any = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "4"}]}}
    results: Message = {"role": "user", "content": [result]}
    assert kinds(sent(HELLO, both, results)["messages"][1]) == ["server_tool_use", "tool_use"]
    four: Message = {"role": "assistant", "content": [{"text": "4."}]}
    assert kinds(sent(HELLO, both, results, four, MORE)["messages"][1]) == ["tool_use"]


def test_a_result_whose_use_is_not_shown_is_left_out() -> None:
    """A window may begin between the two."""
    content = sent(HELLO, whole(FOUND, RAN, text("Six.")).message, MORE)["messages"][1]["content"]
    assert [each["type"] for each in content] == ["text", "text"]
    assert "stdout" in content[0]["text"]


def test_another_provider_gets_a_text_where_meaning_would_be_lost() -> None:
    answer = whole(text("Let me see."), SEARCH, FOUND, CODE, RAN, SUMMARY, text("Six."), container=CONTAINER).message
    call = model_call({"model_id": "amazon.nova-pro-v1:0"}, [HELLO, answer, MORE], None, None, {})
    texts = [each["text"] for each in converse_request(call)["messages"][1]["content"]]
    assert (texts[0], texts[-1]) == ("Let me see.", "Six.")
    assert any("web_search" in each and "six" in each for each in texts)
    assert any("1 + 1" in each for each in texts)
    assert not any("EqA=" in each or "container_1" in each for each in texts)


# Compaction.


def test_a_compaction_arrives_in_a_piece_of_its_own_and_goes_back() -> None:
    answer = read(
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "compaction_delta", "content": "Summary.", "encrypted_content": "EqA="},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": text("ok")},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "compaction"}, "usage": {}},
        {"type": "message_stop"},
    )
    native = {**SUMMARY, "encrypted_content": "EqA="}
    assert answer.message["content"] == [stored(native), {"text": "ok"}]
    assert answer.stop_reason == "compaction"
    assert sent(HELLO, answer.message)["messages"][-1]["content"] == [native, text("ok")]


@pytest.mark.parametrize("streams", [False, True])
def test_all_iterations_are_counted_and_those_of_other_calls_told_apart(streams: bool) -> None:
    iterations = [
        {"type": "compaction", "input_tokens": 99_000, "output_tokens": 200, "cache_read_input_tokens": 0},
        {"type": "message", "input_tokens": 162, "output_tokens": 11, "cache_read_input_tokens": 5},
    ]
    usage = {"input_tokens": 162, "output_tokens": 11, "cache_read_input_tokens": 5, "iterations": iterations}
    if streams:
        answer = read(
            {"type": "message_start", "message": {"usage": {"input_tokens": 162, "output_tokens": 1}}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        )
    else:
        answer = whole(SUMMARY, text("ok"), usage=usage)
    assert (answer.usage["inputTokens"], answer.usage["outputTokens"]) == (99_162, 211)
    assert answer.usage["totalTokens"] == 99_378
    assert answer.other_calls_tokens == 99_200


@pytest.mark.parametrize(
    ("iterations", "total", "other"),
    [
        ([("message", 10, 1), ("advisor_message", 20, 2), ("message", 30, 3)], 66, 33),
        ([("message", 408, 0), ("fallback_message", 412, 264)], 1084, 408),
        ([("message", 10, 1), ("compaction", 90, 9)], 110, 101),
        ([("message", 40, 4)], 44, 0),
        ([], 44, 0),
    ],
)
def test_advisors_and_models_that_gave_up_are_billed_too(
    iterations: list[tuple[str, int, int]], total: int, other: int
) -> None:
    given = [{"type": kind, "input_tokens": read_, "output_tokens": said} for kind, read_, said in iterations]
    answer = whole(text("ok"), usage={"input_tokens": 40, "output_tokens": 4, "iterations": given})
    assert answer.usage["totalTokens"] == total
    assert answer.other_calls_tokens == other


# Containers, and tools that the provider's code calls.

CALLED = {
    "type": "tool_use",
    "id": "t1",
    "name": "roll",
    "input": {"player": 1},
    "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_2"},
}
ROLLED: Any = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "6"}]}}


def test_the_container_of_the_latest_answer_is_used_again() -> None:
    first = whole(text("a"), container={"id": "container_0", "expires_at": "2030-01-01T00:00:00Z"}).message
    second = whole(CODE, RAN, container=CONTAINER).message
    assert second["content"][-1] == stored({"type": "container", **CONTAINER})
    request = sent(HELLO, first, MORE, second, MORE)
    assert request["extra_body"] == {"container": "container_1"}
    assert kinds(request["messages"][3]) == ["server_tool_use", "code_execution_tool_result"]


@pytest.mark.parametrize(
    ("own", "container"),
    [
        ("mine", "mine"),
        ({"id": "mine", "skills": []}, {"id": "mine", "skills": []}),
        ({"skills": [1]}, {"id": "container_1", "skills": [1]}),
    ],
)
def test_the_users_container_wins(own: Any, container: Any) -> None:
    answer = whole(text("a"), container=CONTAINER).message
    assert sent(HELLO, answer, MORE, config={"params": {"container": own}})["extra_body"]["container"] == container


@pytest.mark.parametrize("place", ["start", "delta"])
def test_the_container_of_a_stream_is_stored_once(place: str) -> None:
    start = {"usage": {"input_tokens": 1}, **({"container": CONTAINER} if place == "start" else {})}
    delta = {"stop_reason": "end_turn", **({"container": CONTAINER} if place == "delta" else {})}
    answer = read(
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": text("ok")},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {}},
        {"type": "message_stop"},
    )
    assert answer.message["content"] == [{"text": "ok"}, stored({"type": "container", **CONTAINER})]


def test_a_call_by_the_providers_code_keeps_its_caller_for_this_provider_alone() -> None:
    answer = whole(CODE, CALLED, stop_reason="tool_use").message
    assert answer["content"][1]["toolUse"] == {
        "toolUseId": "t1",
        "name": "roll",
        "input": {"player": 1},
        "caller": CALLED["caller"],
    }
    again = whole({**CALLED, "id": "t2"}, stop_reason="tool_use").message
    results: Message = {"role": "user", "content": [ROLLED]}
    more: Any = {"toolResult": {**ROLLED["toolResult"], "toolUseId": "t2"}}
    request = sent(HELLO, answer, results, again, {"role": "user", "content": [more]})["messages"]
    assert request[1]["content"] == [CODE, CALLED]
    assert request[3]["content"] == [{**CALLED, "id": "t2"}]
    call = model_call({"model_id": "anthropic.claude-x"}, [HELLO, answer, results], None, None, {})
    assert "caller" not in converse_request(call)["messages"][1]["content"][-1]["toolUse"]


def test_a_caller_that_is_not_shown_is_left_out() -> None:
    answer = whole(CODE, CALLED, stop_reason="tool_use").message
    stopped: Message = {"role": "user", "content": [ROLLED, {"text": "Stop."}]}
    assert sent(HELLO, answer, stopped)["messages"][1]["content"] == [
        {key: value for key, value in CALLED.items() if key != "caller"}
    ]


WITHIN = {"type": "code_execution_20260120", "tool_id": "srvtoolu_2"}
PICTURE: Any = {"image": {"format": "png", "source": {"bytes": b"x"}}}
SOURCE: Any = {"searchResult": {"source": "s", "title": "t", "content": [{"text": "c"}]}}


def test_what_code_has_asked_the_provider_for_goes_with_the_code() -> None:
    """The service refuses a use whose code it is not shown."""
    searched = {**SEARCH, "caller": WITHIN}, {**FOUND, "caller": WITHIN}
    answer = whole(CODE, *searched, CALLED, stop_reason="tool_use", container=CONTAINER).message
    results: Message = {"role": "user", "content": [ROLLED]}
    goes_on = sent(HELLO, answer, results)
    assert kinds(goes_on["messages"][1]) == ["server_tool_use", "server_tool_use", "web_search_tool_result", "tool_use"]
    stopped: Message = {"role": "user", "content": [ROLLED, {"text": "Stop."}]}
    assert kinds(sent(HELLO, answer, stopped)["messages"][1]) == ["tool_use"]
    left = without_waiting_code(goes_on["messages"])
    assert [kinds(dict(message)) for message in left] == [["text"], ["tool_use"], ["tool_result"]]
    assert "caller" not in left[1]["content"][0]


def test_an_answer_that_paused_keeps_its_code() -> None:
    answer = whole(CODE, stop_reason="pause_turn", container=CONTAINER).message
    messages = sent(HELLO, answer)["messages"]
    assert without_waiting_code(messages) == messages


@pytest.mark.parametrize("part", [PICTURE, SOURCE], ids=["a picture", "a source"])
def test_code_gets_the_results_of_its_calls_as_text(part: Any) -> None:
    def sent_kinds(caller: dict[str, str]) -> list[str]:
        answer = whole(CODE, {**CALLED, "caller": caller}, stop_reason="tool_use").message
        result: Any = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "6"}, part]}}
        return kinds(sent(HELLO, answer, {"role": "user", "content": [result]})["messages"][2]["content"][0])

    assert sent_kinds(WITHIN) == ["text", "text"]
    assert sent_kinds({"type": "direct"}) in (["text", "image"], ["text", "search_result"])


def test_a_model_that_calls_by_itself_has_no_caller() -> None:
    answer = whole({**CALLED, "caller": {"type": "direct"}}, stop_reason="tool_use").message
    assert "caller" not in answer["content"][0]["toolUse"]


def test_the_whole_content_may_come_with_the_start_of_the_message() -> None:
    message = {"content": [CALLED], "stop_reason": "tool_use", "usage": {"input_tokens": 0}, "container": CONTAINER}
    answer = read({"type": "message_start", "message": message}, {"type": "message_stop"})
    assert answer.stop_reason == "tool_use"
    assert answer.message["content"][0]["toolUse"]["toolUseId"] == "t1"


def test_content_that_comes_with_the_start_and_again_as_blocks_counts_once() -> None:
    answer = read(
        {"type": "message_start", "message": {"content": [text("")], "stop_reason": "", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    )
    assert answer.message["content"] == [{"text": "ok"}]


def test_a_start_that_is_said_twice_is_one_start_and_in_the_middle_a_break() -> None:
    begin = {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}
    last = [
        {"type": "content_block_start", "index": 0, "content_block": text("ok")},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ]
    assert read(begin, begin, *last).message["content"] == [{"text": "ok"}]
    with pytest.raises(ModelStreamBroken, match="anew"):
        read(begin, *last[:2], begin, *last)


def test_a_search_for_tools_goes_back_as_it_came() -> None:
    found = [{"type": "tool_reference", "tool_name": "fax"}]
    search = {"type": "server_tool_use", "id": "srvtoolu_3", "name": "tool_search_tool_bm25", "input": {"query": "fax"}}
    outcome = {"type": "tool_search_tool_search_result", "tool_references": found}
    result = {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_3", "content": outcome}
    call = {"type": "tool_use", "id": "toolu_1", "name": "fax", "input": {}}
    answer = whole(search, result, call, stop_reason="tool_use")
    assert answer.message["content"][:2] == [stored(search), stored(result)]
    ran: Message = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "toolu_1", "status": "success", "content": [{"text": "sent"}]}}],
    }
    assert sent(HELLO, answer.message, ran)["messages"][1]["content"] == [search, result, call]
