"""What a stored conversation may hold, and what of it Anthropic's service is sent: nothing that it refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest

from repertory.backends.models.anthropic import AnthropicConfig, MessagesReader, messages_arguments
from repertory.backends.models.bedrock import converse_request
from repertory.backends.models.fitting import EARLIER_OMITTED, INVALID_TOOL_NAME, NO_OUTPUT_TEXT
from repertory.backends.models.provider import model_call
from repertory.core.answer import Assembler
from repertory.core.messages import Message, ToolSpec
from repertory.errors import Invalid, ModelFailed
from tests.backends.models.sdk_services import ANTHROPIC, ask
from tests.backends.models.wire_server import Exchange

HELLO: Message = {"role": "user", "content": [{"text": "Hello"}]}
MORE: Message = {"role": "user", "content": [{"text": "And now?"}]}
ADD: ToolSpec = {"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}
THINKING: Any = {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}, "provider": "anthropic"}}
UNSIGNED: Any = {"reasoningContent": {"reasoningText": {"text": "Hm"}, "provider": "openai"}}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def said(*blocks: Any) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def used(use_id: str = "t1", name: str = "add") -> Any:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": {}}}


def gave(use_id: str = "t1", *content: Any, status: str = "success") -> Any:
    return {"toolResult": {"toolUseId": use_id, "status": status, "content": list(content) or [{"text": "4"}]}}


def user(*blocks: Any) -> Message:
    return {"role": "user", "content": list(blocks)}


def sent(*messages: Message, config: AnthropicConfig | None = None, **options: Any) -> dict[str, Any]:
    settings: AnthropicConfig = {"model_id": "m", "max_tokens": 9, **(config or {})}
    return messages_arguments(model_call(settings, messages, [ADD], None, options))


def test_a_window_that_begins_with_a_tool_use_gets_a_message_of_the_user_in_front() -> None:
    messages = sent(said(used()), user(gave()), said({"text": "Four."}), MORE)["messages"]
    assert messages[0] == {"role": "user", "content": [text(EARLIER_OMITTED)]}
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize(("name", "fitting"), [("invalid tool", INVALID_TOOL_NAME), ("a" * 128, "a" * 128)])
def test_a_tool_name_that_the_service_refuses_is_replaced(name: str, fitting: str) -> None:
    assert sent(HELLO, said(used(name=name)), user(gave()), MORE)["messages"][1]["content"][0]["name"] == fitting


def test_ids_of_another_service_are_mapped_the_same_way_each_time() -> None:
    ids = ("functions.look:0", "functions.look:1")
    asked, answered = said(*map(used, ids)), user(*map(gave, ids))
    for later in ([], [said({"text": "Four."}), MORE]):
        messages = sent(HELLO, asked, answered, *cast("Any", later))["messages"]
        uses = [block["id"] for block in messages[1]["content"]]
        assert uses == [block["tool_use_id"] for block in messages[2]["content"]]
        assert len(set(uses)) == 2
        assert all(each.replace("_", "").isalnum() for each in uses)


@pytest.mark.parametrize("content", [[], [{"text": " "}], [{"text": ""}, {"text": "\n"}]])
def test_an_error_without_words_is_sent_with_words(content: list[Any]) -> None:
    failed: Any = {"toolResult": {"toolUseId": "t1", "status": "error", "content": content}}
    messages = sent(HELLO, said(used()), user(failed), said({"text": "Oh."}), MORE)["messages"]
    assert messages[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [text(NO_OUTPUT_TEXT)],
        "is_error": True,
    }


def test_an_error_with_an_image_is_sent_as_text_alone() -> None:
    image = {"image": {"format": "png", "source": {"bytes": b"x"}}}
    messages = sent(HELLO, said(used()), user(gave("t1", {"text": "no"}, image, status="error")), said({"text": "Oh."}))
    kinds = [part["type"] for part in messages["messages"][2]["content"][0]["content"]]
    assert kinds == ["text", "text"]


def test_a_document_that_is_refused_is_named_in_the_prompt_and_replaced_later() -> None:
    word: Any = {"document": {"format": "docx", "name": "a", "source": {"bytes": b"x"}}}
    with pytest.raises(Invalid, match=r"document.*docx") as raised:
        sent(HELLO, said({"text": "Yes?"}), user({"text": "Look"}, word))
    assert raised.value.fields | {"message": 2, "content_block": 1} == raised.value.fields
    content = sent(HELLO, user({"text": "Look"}, word), said({"text": "No."}), MORE)["messages"][1]["content"]
    assert [block["type"] for block in content] == ["text", "text"]


def test_a_search_result_of_the_callers_is_spelled_as_the_service_does() -> None:
    found = {"searchResult": {"source": "a", "title": "A", "content": [{"text": "b"}], "citations": {"enabled": True}}}
    messages = sent(HELLO, said(used()), user(gave("t1", found)))["messages"]
    assert messages[2]["content"][0]["content"] == [
        {"type": "search_result", "source": "a", "title": "A", "content": [text("b")], "citations": {"enabled": True}}
    ]


def test_a_result_may_hold_what_only_the_service_reads_and_others_get_it_as_text() -> None:
    reference = {"type": "tool_reference", "tool_name": "add"}
    part = {"providerContent": {"provider": "anthropic", "content": reference}}
    messages = [HELLO, said(used()), user(gave("t1", part))]
    assert sent(*messages)["messages"][2]["content"][0]["content"] == [reference]
    call = model_call({"model_id": "anthropic.claude-x"}, messages, [ADD], None, {})
    (result,) = converse_request(call)["messages"][2]["content"]
    assert "tool_reference" in result["toolResult"]["content"][0]["text"]


# Thinking.


@pytest.mark.parametrize("thinking", [ENABLED, {"type": "adaptive"}])
@pytest.mark.parametrize("choice", [{"tool": {"name": "add"}}, {"any": {}}])
@pytest.mark.parametrize("place", ["params", "extra_body"])
def test_a_model_that_thinks_is_not_forced_to_use_a_tool(thinking: Any, choice: Any, place: str) -> None:
    """The service refuses the two together; it may still choose the tool."""
    params = {"thinking": thinking} if place == "params" else {"extra_body": {"thinking": thinking}}
    assert sent(HELLO, config={"params": params}, tool_choice=choice)["tool_choice"] == {"type": "auto"}


def test_a_model_that_does_not_think_is_forced_as_asked() -> None:
    config: AnthropicConfig = {"params": {"thinking": {"type": "disabled"}}}
    assert sent(HELLO, config=config, tool_choice={"any": {}})["tool_choice"] == {"type": "any"}


def thinks(*messages: Message, thinking: Any = ENABLED) -> bool:
    request = sent(*messages, config={"params": {"thinking": thinking}})
    return "thinking" in request.get("extra_body", {})


def test_a_turn_that_another_model_has_begun_goes_on_without_thinking() -> None:
    """The service wants the first answer of the turn to begin with a thought that it has signed."""
    foreign = (said(UNSIGNED, used()), user(gave()))
    assert not thinks(HELLO, *foreign)
    assert not thinks(HELLO, said({"text": "a"}), MORE, *foreign)
    assert thinks(HELLO, *foreign, said({"text": "Four."}), MORE)
    assert thinks(HELLO, *foreign, thinking={"type": "adaptive"})


def test_a_turn_that_began_with_a_thought_goes_on_with_thinking() -> None:
    own = (said(THINKING, used()), user(gave()))
    assert thinks(HELLO, *own)
    assert thinks(HELLO, *own, said(used("t2")), user(gave("t2")))
    assert thinks(HELLO)
    assert thinks(HELLO, said({"text": "a"}), MORE)


@pytest.mark.parametrize("streams", [True, False])
def test_thinking_goes_back_as_it_came(streams: bool) -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque=="},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {}},
    ]
    reader, assembler = MessagesReader(), Assembler()
    whole = {"content": blocks, "stop_reason": "tool_use", "usage": {}}
    if streams:
        events: list[dict[str, Any]] = [{"type": "message_start", "message": {}}]
        for index, given in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": given})
            events.append({"type": "content_block_stop", "index": index})
        events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
        found = [ours for event in events for ours in reader.feed(event)]
    else:
        found = [*reader.whole(whole)]
    for ours in [*found, *reader.finish()]:
        assembler.feed(ours)
    answer = assembler.finish().message
    for later in ([], [said({"text": "Four."}), MORE]):
        assert sent(HELLO, answer, user(gave()), *cast("Any", later))["messages"][1]["content"] == blocks


# Texts and their sources.

CITATIONS = [
    {
        "type": "web_search_result_location",
        "cited_text": "six",
        "encrypted_index": "EqA=",
        "title": "A",
        "url": "https://a.example",
    },
    {
        "type": "search_result_location",
        "cited_text": "six",
        "search_result_index": 0,
        "source": "notes/1",
        "start_block_index": 0,
        "end_block_index": 1,
        "title": None,
    },
    {
        "type": "char_location",
        "cited_text": "six",
        "document_index": 0,
        "document_title": "B",
        "start_char_index": 0,
        "end_char_index": 3,
    },
    {
        "type": "page_location",
        "cited_text": "six",
        "document_index": 1,
        "document_title": None,
        "start_page_number": 1,
        "end_page_number": 2,
    },
    {
        "type": "content_block_location",
        "cited_text": "six",
        "document_index": 0,
        "document_title": "B",
        "start_block_index": 0,
        "end_block_index": 1,
    },
]


def answered(*blocks: dict[str, Any]) -> Message:
    reader, assembler = MessagesReader(), Assembler()
    for ours in [*reader.whole({"content": list(blocks), "stop_reason": "end_turn", "usage": {}}), *reader.finish()]:
        assembler.feed(ours)
    return assembler.finish().message


@pytest.mark.parametrize("citation", CITATIONS, ids=lambda citation: citation["type"])
def test_a_text_goes_back_with_its_sources(citation: dict[str, Any]) -> None:
    cited = {**text("Six."), "citations": [citation]}
    assert sent(HELLO, answered(cited), MORE)["messages"][1]["content"] == [cited]


def test_a_web_source_is_stored_with_its_page() -> None:
    (block,) = answered({**text("Six."), "citations": [CITATIONS[0]]})["content"]
    assert block["citationsContent"]["citations"] == [
        {
            "title": "A",
            "sourceContent": [{"text": "six"}],
            "location": {"web": {"url": "https://a.example"}},
            "encryptedIndex": "EqA=",
        }
    ]


def test_sources_of_another_service_stay_out_and_their_text_goes() -> None:
    page = {"title": "A", "sourceContent": [{"text": "six"}], "location": {"web": {"url": "https://a.example"}}}
    cited: Any = {"citationsContent": {"content": [{"text": "Six."}], "citations": [page]}}
    assert sent(HELLO, said(cited), MORE)["messages"][1]["content"] == [text("Six.")]


def test_blank_text_between_cited_texts_joins_its_neighbour() -> None:
    """The service refuses it alone, and without it two words would become one."""
    first, last = ({**text(words), "citations": [CITATIONS[0]]} for words in ("4.0.6.", "Ruby"))
    content = sent(HELLO, answered(first, text(" "), last), MORE)["messages"][1]["content"]
    assert "".join(block["text"] for block in content) == "4.0.6. Ruby"
    assert [block["citations"] for block in content] == [[CITATIONS[0]]] * 2


def test_an_answer_that_goes_on_does_not_end_in_white_space() -> None:
    assert sent(HELLO, said({"text": "One moment. \n"}))["messages"][-1]["content"] == [text("One moment.")]
    assert sent(HELLO, said({"text": "a\n"}), MORE)["messages"][1]["content"] == [text("a\n")]


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.usefixtures("no_keys")
async def test_sources_that_the_service_no_longer_takes_are_left_out() -> None:
    words = "messages.1.content.0.citations.0.document_index: no such document"

    async def handle(exchange: Exchange) -> None:
        if "citations" in exchange.body["messages"][1]["content"][0]:
            await exchange.answer(400, ANTHROPIC.error("invalid_request_error", words))
        else:
            await exchange.stream(*ANTHROPIC.text("Hello"), media="text/event-stream")

    told = answered({**text("Six."), "citations": [CITATIONS[2]]})
    async with ANTHROPIC.serving(handle) as (model, _):
        assert (await ask(model, [HELLO, told, MORE])).message["content"] == [{"text": "Hello"}]


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.usefixtures("no_keys")
async def test_any_other_refusal_is_asked_about_once() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(400, ANTHROPIC.error("invalid_request_error", "messages: no"))

    async with ANTHROPIC.serving(handle) as (model, server):
        with pytest.raises(ModelFailed, match="messages: no"):
            await ask(model, [HELLO])
        assert len(server.requests) == 1
