"""What each family of models on Bedrock takes of a stored conversation, and what of it is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from repertory.backends.models.bedrock import BedrockConfig, BedrockModel, converse_request
from repertory.backends.models.content import BLANK_TEXT
from repertory.backends.models.fitting import EARLIER_OMITTED, NO_OUTPUT_TEXT
from repertory.backends.models.provider import model_call
from repertory.core.messages import NO_ANSWER_TEXT, Message, ToolSpec
from repertory.errors import Invalid

CLAUDE = "global.anthropic.claude-sonnet-4-6"
NOVA = "us.amazon.nova-2-lite-v1:0"
NOVA_1 = "us.amazon.nova-pro-v1:0"
LLAMA = "us.meta.llama4-maverick-17b-instruct-v1:0"
R1 = "us.deepseek.r1-v1:0"
MINIMAX = "minimax.minimax-m2"
NEMOTRON = "nvidia.nemotron-nano-12b-v2"
MISTRAL = "us.mistral.pixtral-large-2502-v1:0"
WRITER = "us.writer.palmyra-x5-v1:0"
QWEN = "qwen.qwen3-vl-235b-a22b"
GPT = "openai.gpt-oss-120b-1:0"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/mi1dadi0g15f"
CLAUDE_PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-opus-4"

HELLO: Message = {"role": "user", "content": [{"text": "Hello"}]}
MORE: Message = {"role": "user", "content": [{"text": "And now?"}]}
ADD: ToolSpec = {"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}


def said(*blocks: Any) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> Message:
    return {"role": "user", "content": list(blocks)}


def used(use_id: str = "t1") -> Any:
    return {"toolUse": {"toolUseId": use_id, "name": "add", "input": {}}}


def gave(*content: Any, use_id: str = "t1", status: str = "success") -> Any:
    return {"toolResult": {"toolUseId": use_id, "status": status, "content": list(content)}}


def sent(model_id: str, *messages: Message, config: BedrockConfig | None = None, **options: Any) -> dict[str, Any]:
    settings: BedrockConfig = {"model_id": model_id, **(config or {})}
    return converse_request(model_call(settings, messages, [ADD], None, options))


def contents(model_id: str, *messages: Message) -> list[Any]:
    return [message["content"] for message in sent(model_id, *messages)["messages"]]


def thought(provider: str | None, **spoken: str) -> Any:
    mark = {} if provider is None else {"provider": provider}
    return {"reasoningContent": {"reasoningText": {"text": "Hm", **spoken}, **mark}}


SIGNED, UNSIGNED = {"text": "Hm", "signature": "sig"}, {"text": "Hm"}


@pytest.mark.parametrize(
    ("model_id", "block", "goes"),
    [
        (CLAUDE, thought("anthropic", signature="sig"), SIGNED),
        (CLAUDE, thought(None, signature="sig"), SIGNED),
        (CLAUDE_PROFILE, thought("anthropic", signature="sig"), SIGNED),
        (CLAUDE, thought("anthropic"), None),
        (CLAUDE, thought("openai"), None),
        (CLAUDE, thought("gemini", signature="sig"), None),
        (NOVA, thought("bedrock"), UNSIGNED),
        (NOVA, thought("bedrock", signature="sig"), None),
        (NOVA, thought("anthropic", signature="sig"), None),
        (NOVA_1, thought("bedrock"), None),
        (MINIMAX, thought("bedrock"), UNSIGNED),
        (GPT, thought("bedrock"), UNSIGNED),
        (R1, thought("bedrock"), None),
        (R1, thought(None), None),
        (LLAMA, thought("bedrock"), None),
        (WRITER, thought("bedrock"), None),
        (PROFILE, thought("bedrock"), UNSIGNED),
        (PROFILE, thought("bedrock", signature="sig"), SIGNED),
    ],
)
def test_reasoning_goes_back_to_those_who_take_it(model_id: str, block: Any, goes: Any) -> None:
    for later in ([MORE], [MORE, said({"text": "No."}), MORE]):
        content = contents(model_id, HELLO, said(block, {"text": "Yes."}), *cast("Any", later))[1]
        expected = [] if goes is None else [{"reasoningContent": {"reasoningText": goes}}]
        assert content == [*expected, {"text": "Yes."}]


def test_redacted_reasoning_goes_to_claude_alone() -> None:
    block = {"reasoningContent": {"redactedContent": b"x", "provider": "anthropic"}}
    assert contents(CLAUDE, HELLO, said(block, {"text": "a"}), MORE)[1][0] == {
        "reasoningContent": {"redactedContent": b"x"}
    }
    assert contents(NOVA, HELLO, said(block, {"text": "a"}), MORE)[1] == [{"text": "a"}]


@pytest.mark.parametrize("model_id", [LLAMA, MISTRAL, WRITER])
@pytest.mark.parametrize("apart", [True, False])
def test_results_stand_alone_where_nothing_may_stand_beside_them(model_id: str, apart: bool) -> None:
    results, prompt = user(gave({"text": "4"})), user({"text": "Are you there?"})
    later = [results, prompt] if apart else [user(*results["content"], *prompt["content"])]
    got = contents(model_id, HELLO, said(used()), *later)
    assert [next(iter(block)) for content in got[2:] for block in content] == ["toolResult", "text", "text"]
    assert got[3] == [{"text": NO_ANSWER_TEXT}]


def test_a_prompt_may_stand_beside_results_for_others_and_a_document_not_for_claude() -> None:
    document = {"document": {"format": "txt", "name": "a", "source": {"bytes": b"x"}}}
    both, three = user(gave({"text": "4"}), {"text": "a"}), user(gave({"text": "4"}), {"text": "a"}, document)
    assert len(contents(CLAUDE, HELLO, said(used()), both)) == 3
    assert len(contents(NOVA, HELLO, said(used()), three)) == 3
    assert len(contents(CLAUDE, HELLO, said(used()), three)) == 5
    assert len(contents(CLAUDE, HELLO, said(used()), user(gave({"text": "4"}), {"text": "a"}, PDF))) == 3


@pytest.mark.parametrize(
    ("model_id", "goes"),
    [(NOVA, {"text": '{"a": "é"}'}), (CLAUDE, {"json": {"a": "é"}}), (MISTRAL, {"json": {"a": "é"}})],
)
def test_json_goes_to_nova_as_text(model_id: str, goes: Any) -> None:
    (result,) = contents(model_id, HELLO, said(used()), user(gave({"json": {"a": "é"}})))[2]
    assert result["toolResult"]["content"] == [goes]


@pytest.mark.parametrize(
    ("model_id", "takes"), [(CLAUDE, True), (NOVA, True), (LLAMA, False), (WRITER, False), (PROFILE, False)]
)
def test_the_status_goes_to_those_who_take_it(model_id: str, takes: bool) -> None:
    (result,) = contents(model_id, HELLO, said(used()), user(gave({"text": "no"}, status="error")))[2]
    assert ("status" in result["toolResult"]) is takes


@pytest.mark.parametrize("model_id", [CLAUDE, NOVA, NEMOTRON, LLAMA, PROFILE])
@pytest.mark.parametrize("status", ["error", "success"])
@pytest.mark.parametrize("content", [[], [{"text": " "}]])
def test_a_result_without_content_is_filled(model_id: str, status: str, content: list[Any]) -> None:
    result = gave(*content, status=status)
    got = contents(model_id, HELLO, said(used()), user(result), said({"text": "Oh."}), MORE)[2]
    assert got[0]["toolResult"]["content"] == [{"text": NO_OUTPUT_TEXT}]


IMAGE = {"image": {"format": "png", "source": {"bytes": b"x"}}}
PDF = {"document": {"format": "pdf", "name": "a", "source": {"bytes": b"x"}}}
NOTE = {"document": {"format": "txt", "name": "a", "source": {"bytes": b"x"}}}


@pytest.mark.parametrize(
    ("model_id", "takes"),
    [
        (CLAUDE, [True, True, True]),
        (NOVA, [True, False, True]),
        (LLAMA, [True, True, True]),
        (MISTRAL, [False, True, True]),
        (QWEN, [False, False, False]),
        (PROFILE, [True, True, True]),
    ],
)
def test_media_in_a_result_go_to_those_who_take_them_there(model_id: str, takes: list[bool]) -> None:
    (result,) = contents(model_id, HELLO, said(used()), user(gave(IMAGE, PDF, NOTE)))[2]
    assert ["text" not in part for part in result["toolResult"]["content"]] == takes


def test_a_video_is_refused_for_claude_in_the_prompt_and_replaced_later() -> None:
    video: Any = {"video": {"format": "mp4", "source": {"bytes": b"x"}}}
    with pytest.raises(Invalid, match="Bedrock cannot take this video"):
        sent(CLAUDE, user(video))
    assert [*contents(CLAUDE, user(video, {"text": "a"}), said({"text": "b"}), MORE)[0][0]] == ["text"]
    assert contents(NOVA, user(video, {"text": "a"}))[0][0] == video


def test_documents_get_names_that_fit_and_differ_and_a_text_beside_them() -> None:
    def document(name: str) -> Any:
        return {"document": {"format": "pdf", "name": name, "source": {"bytes": b"x"}}}

    first = user(document("my_file v1.2.pdf"), document("report"))
    content = contents(CLAUDE, first, said({"text": "a"}), user(document("report"), {"text": "Again."}))
    names = [block["document"]["name"] for part in content for block in part if "document" in block]
    assert names == ["my-file v1-2-pdf", "report", "report-2"]
    assert any("text" in block for block in content[0])


def test_a_jpg_is_a_jpeg() -> None:
    image: Any = {"image": {"format": "jpg", "source": {"bytes": b"x"}}}
    assert contents(NOVA, user(image, {"text": "a"}))[0][0]["image"]["format"] == "jpeg"
    assert image["image"]["format"] == "jpg"


@pytest.mark.parametrize("model_id", [CLAUDE, NOVA, LLAMA])
def test_a_window_that_begins_with_a_tool_use_gets_a_message_of_the_user_in_front(model_id: str) -> None:
    got = contents(model_id, said(used()), user(gave({"text": "4"})), said({"text": "Four."}), MORE)
    assert got[0] == [{"text": EARLIER_OMITTED}]


def test_ids_and_names_of_tools_fit() -> None:
    use: Any = {"toolUse": {"toolUseId": "functions.look:0" + "x" * 70, "name": "invalid tool", "input": {}}}
    got = contents(CLAUDE, HELLO, said(use), user(gave({"text": "4"}, use_id=use["toolUse"]["toolUseId"])), MORE)
    asked, answered = got[1][0]["toolUse"], got[2][0]["toolResult"]
    assert asked["name"] == "INVALID_TOOL_NAME"
    assert asked["toolUseId"] == answered["toolUseId"]
    assert len(asked["toolUseId"]) <= 64


# Thinking.


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
        {"reasoning_config": {"type": "enabled", "budget_tokens": 1024}},
    ],
)
@pytest.mark.parametrize("choice", [{"tool": {"name": "add"}}, {"any": {}}])
def test_a_model_that_thinks_is_not_forced_to_use_a_tool(fields: Any, choice: Any) -> None:
    """The service refuses the two together; it may still choose the tool."""
    for config in (
        {"additional_request_fields": fields},
        {"additional_args": {"additionalModelRequestFields": fields}},
    ):
        request = sent(CLAUDE, HELLO, config=cast("BedrockConfig", config), tool_choice=choice)
        assert request["toolConfig"]["toolChoice"] == {"auto": {}}
    assert sent(CLAUDE, HELLO, tool_choice=choice)["toolConfig"]["toolChoice"] == choice


def test_a_turn_that_another_model_has_begun_goes_on_without_thinking() -> None:
    """The service wants the first answer of the turn to begin with a thought that it has signed."""
    config: BedrockConfig = {"additional_request_fields": {"thinking": {"type": "enabled"}, "top_k": 5}}

    def fields(*messages: Message) -> Any:
        return sent(CLAUDE, *messages, config=config)["additionalModelRequestFields"]

    foreign, results = said(thought("openai"), used()), user(gave({"text": "4"}))
    assert fields(HELLO, foreign, results) == {"top_k": 5}
    assert "thinking" in fields(HELLO, foreign, results, said({"text": "a"}), MORE)
    assert "thinking" in fields(HELLO, said(thought("anthropic", signature="sig"), used()), results)
    assert config["additional_request_fields"] == {"thinking": {"type": "enabled"}, "top_k": 5}


# Texts and their sources.


def cited(location: Any, **more: Any) -> Any:
    citation = {"title": "A", "sourceContent": [{"text": "six"}], "location": location, **more}
    return {"citationsContent": {"content": [{"text": "Six."}], "citations": [citation]}}


PAGE = {"web": {"url": "https://a.example"}}
CHARS = {"documentChar": {"documentIndex": 0, "start": 0, "end": 3}}


@pytest.mark.parametrize(
    ("model_id", "block", "goes"),
    [
        (CLAUDE, cited(CHARS), True),
        (CLAUDE, cited(PAGE), False),
        (CLAUDE, cited(PAGE, encryptedIndex="EqA="), False),
        (NOVA, cited(PAGE), True),
        (NOVA, cited(CHARS), False),
        (LLAMA, cited(CHARS), False),
        (PROFILE, cited(PAGE), True),
    ],
)
def test_a_text_goes_back_with_the_sources_that_the_model_can_have_named(model_id: str, block: Any, goes: bool) -> None:
    assert contents(model_id, HELLO, said(block), MORE)[1] == [block if goes else {"text": "Six."}]


def test_blank_text_between_cited_texts_joins_its_neighbour() -> None:
    content = contents(CLAUDE, HELLO, said(cited(CHARS), {"text": " "}, {"text": "Ruby"}), MORE)[1]
    assert [part["text"] for part in content[0]["citationsContent"]["content"]] == ["Six.", " "]
    assert content[1] == {"text": "Ruby"}


def test_an_answer_that_goes_on_does_not_end_in_white_space() -> None:
    assert contents(CLAUDE, HELLO, said({"text": "One moment. \n"}))[1] == [{"text": "One moment."}]
    assert contents(CLAUDE, HELLO, said({"text": " "}))[1] == [{"text": BLANK_TEXT}]


def test_the_public_request_is_the_same() -> None:
    model = BedrockModel(model_id=CLAUDE, region_name="us-east-1")
    request = model.format_request([HELLO, said(thought("openai"), {"text": "Yes."}), MORE])
    assert request["messages"][1]["content"] == [{"text": "Yes."}]
