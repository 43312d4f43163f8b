"""How reasoning goes back to the services behind Chat Completions, each in its own way, and to no other one."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import OpenAIModel
from repertory.backends.models.chat_services import (
    COMPATIBLE,
    GEMINI_CHAT,
    MISTRAL_CHAT,
    OPENAI_CHAT,
    ChatService,
    chat_service,
)
from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.openai import ATTACHED, completion_arguments
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import NO_ANSWER_TEXT
from tests.backends.models.sdk_services import HELLO, LLAMA_CPP, MISTRAL, OPENAI, ask, chunk, event
from tests.backends.models.wire_server import Exchange

QUESTION: Any = {"role": "user", "content": [{"text": "And?"}]}


def thought(provider: str | None, text: str = "Hm.") -> dict[str, Any]:
    mark = {"provider": provider} if provider else {}
    return {"reasoningContent": {"reasoningText": {"text": text}, **mark}}


def sent(chat: ChatService, *blocks: Any, **config: Any) -> dict[str, Any]:
    """The message that an answer becomes."""
    messages: Any = [*HELLO, {"role": "assistant", "content": list(blocks)}, QUESTION]
    call = model_call({"model_id": "m", **config}, messages, None, None, {})
    return completion_arguments(call, chat=chat)["messages"][1]


def read(chat: ChatService, *deltas: dict[str, Any], finish: str = "stop") -> Answer:
    reader, assembler = CompletionReader(chat), Assembler()
    events = [each for piece in (*(chunk(delta) for delta in deltas), chunk({}, finish)) for each in reader.feed(piece)]
    for each in [*events, *reader.finish()]:
        assembler.feed(each)
    return assembler.finish()


@pytest.mark.parametrize(
    ("url", "name", "form"),
    [
        (None, "openai-chat", None),
        ("https://api.openai.com/v1", "openai-chat", None),
        ("https://x.openai.azure.com/openai/", "openai-chat", None),
        ("https://api.deepseek.com/v1", "deepseek", "reasoning_content"),
        ("https://api.moonshot.cn/v1", "moonshot", "reasoning_content"),
        ("https://api.z.ai/api/paas/v4", "zai", "reasoning_content"),
        ("https://openrouter.ai/api/v1", "openrouter", "reasoning_details"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "qwen", "reasoning_content"),
        ("https://api.x.ai/v1", "xai", "reasoning_content"),
        ("https://api.minimax.io/v1", "minimax", "reasoning_details"),
        ("https://api.mistral.ai/v1", "mistral", "thinking"),
        ("http://localhost:8000/v1", "compatible", None),
        ("localhost:8000", "compatible", None),
        ("https://deepseek.example/v1", "compatible", None),
        ("https://api.deepseek.com.example/v1", "compatible", None),
    ],
)
def test_a_url_tells_the_service(url: str | None, name: str, form: str | None) -> None:
    assert (chat_service(url).name, chat_service(url).reasoning) == (name, form)


@pytest.mark.parametrize("host", ["api.deepseek.com", "api.moonshot.ai", "api.z.ai", "api.x.ai"])
def test_reasoning_content_goes_back_to_the_service_that_gave_it(host: str) -> None:
    chat = chat_service(f"https://{host}/v1")
    answer = read(chat, {"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "4"})
    assert answer.message["content"] == [thought(chat.name), {"text": "4"}]
    assert sent(chat, *answer.message["content"]) == {"role": "assistant", "content": "4", "reasoning_content": "Hm."}
    for other in (OPENAI_CHAT, COMPATIBLE, chat_service("https://openrouter.ai"), MISTRAL_CHAT):
        assert sent(other, *answer.message["content"]) == {"role": "assistant", "content": "4"}


def test_openai_and_unknown_servers_get_none_unless_a_field_is_named() -> None:
    for chat in (OPENAI_CHAT, COMPATIBLE):
        block = thought(chat.name)
        assert sent(chat, block, {"text": "4"}) == {"role": "assistant", "content": "4"}
        named = sent(chat, block, {"text": "4"}, reasoning_field="reasoning")
        assert named == {"role": "assistant", "content": "4", "reasoning": "Hm."}


def test_a_named_field_wins_over_the_table() -> None:
    chat = chat_service("https://api.deepseek.com")
    assert sent(chat, thought("deepseek"), {"text": "4"}, reasoning_field="thoughts")["thoughts"] == "Hm."


OPENROUTER = chat_service("https://openrouter.ai/api/v1")
TEXT = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}


def test_reasoning_details_are_put_together_and_go_back_unchanged() -> None:
    pieces = [
        {"reasoning": "Let me", "reasoning_details": [{**TEXT, "text": "Let me"}]},
        {"reasoning": " see.", "reasoning_details": [{**TEXT, "text": " see."}]},
        {"reasoning_details": [{**TEXT, "signature": "c2ln"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "ZW5j", "index": 1, "id": "rs_1"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "b3RoZXI=", "index": 1, "id": "rs_2"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "In ", "index": 2}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "short.", "index": 2}]},
        {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]},
    ]
    details = [
        {**TEXT, "text": "Let me see.", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1, "id": "rs_1"},
        {"type": "reasoning.encrypted", "data": "b3RoZXI=", "index": 1, "id": "rs_2"},
        {"type": "reasoning.summary", "summary": "In short.", "index": 2},
    ]
    answer = read(OPENROUTER, *pieces, finish="tool_calls")
    assert answer.message["content"] == [
        thought("openrouter", "Let me see.In short."),
        {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}},
        {"providerContent": {"provider": "openrouter", "content": {"reasoning_details": details}}},
    ]
    assert sent(OPENROUTER, *answer.message["content"])["reasoning_details"] == details
    assert "reasoning" not in sent(OPENROUTER, *answer.message["content"])
    for other in (OPENAI_CHAT, chat_service("https://api.minimax.io")):
        assert sent(other, *answer.message["content"]).keys() == {"role", "content", "tool_calls"}


def test_details_without_reasoning_are_reasoning() -> None:
    """Snowflake sends nothing else."""
    chat = chat_service("https://a.snowflakecomputing.com/api/v2/cortex/v1")
    answer = read(chat, {"content": "", "reasoning_details": [{**TEXT, "text": "15"}]}, {"content": "405"})
    assert answer.message["content"][:2] == [thought("snowflake", "15"), {"text": "405"}]
    message = {"content": "405", "reasoning_details": [{**TEXT, "text": "15"}]}
    reader, assembler = CompletionReader(chat), Assembler()
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    for each in [*reader.whole({"id": "c", "choices": [choice]}), *reader.finish()]:
        assembler.feed(each)
    assert assembler.finish().message == answer.message


def test_reasoning_without_details_goes_to_openrouter_as_text() -> None:
    assert sent(OPENROUTER, thought("openrouter"), {"text": "4"})["reasoning"] == "Hm."


def test_mistral_gets_its_thoughts_as_parts() -> None:
    content = sent(MISTRAL_CHAT, thought("mistral"), {"text": "4"})["content"]
    assert content == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "4"},
    ]
    assert sent(MISTRAL_CHAT, thought("deepseek"), {"text": "4"})["content"] == "4"


def test_a_signature_of_gemini_goes_back_with_its_call() -> None:
    call = {
        "index": 0,
        "id": "t",
        "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "c2ln"}},
    }
    answer = read(GEMINI_CHAT, {"tool_calls": [call]}, finish="tool_calls")
    (block,) = answer.message["content"]
    assert block["toolUse"]["reasoningSignature"] == "c2ln"
    (made,) = sent(GEMINI_CHAT, block)["tool_calls"]
    assert made["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    (made,) = sent(OPENAI_CHAT, block)["tool_calls"]
    assert made.keys() == {"id", "type", "function"}


@pytest.mark.parametrize(
    ("chat", "given", "taken"),
    [
        (OPENAI_CHAT, "functions.look:0", "functions.look:0"),
        (OPENAI_CHAT, "c" * 40, "c" * 40),
        (OPENAI_CHAT, "c" * 53, None),
        (COMPATIBLE, "c" * 53, None),
        (chat_service("https://api.moonshot.ai"), "functions.look:0", "functions.look:0"),
        (MISTRAL_CHAT, "abcDEF123", "abcDEF123"),
        (MISTRAL_CHAT, "call_1", None),
    ],
)
def test_ids_of_tool_uses_fit_the_service(chat: ChatService, given: str, taken: str | None) -> None:
    use: Any = {"toolUse": {"toolUseId": given, "name": "f", "input": {}}}
    result: Any = {"toolResult": {"toolUseId": given, "status": "success", "content": [{"text": "4"}]}}
    messages: Any = [*HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    asked = completion_arguments(model_call({"model_id": "m"}, messages, None, None, {}), chat=chat)["messages"]
    made = asked[1]["tool_calls"][0]["id"]
    assert asked[2]["tool_call_id"] == made
    assert made == taken if taken else len(made) == (9 if chat is MISTRAL_CHAT else 40)


def test_mistral_never_gets_a_users_message_directly_after_a_tools() -> None:
    use: Any = {"toolUse": {"toolUseId": "abcDEF123", "name": "f", "input": {}}}
    picture: Any = {"image": {"format": "png", "source": {"bytes": b"x"}}}
    result: Any = {"toolResult": {"toolUseId": "abcDEF123", "status": "success", "content": [{"text": "4"}, picture]}}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"text": "And?"}]},
    ]
    asked = completion_arguments(model_call({"model_id": "m"}, messages, None, None, {}), chat=MISTRAL_CHAT)["messages"]
    assert [each["role"] for each in asked] == ["user", "assistant", "tool", "assistant", "user", "assistant", "user"]
    assert [asked[3]["content"], asked[5]["content"]] == [ATTACHED, NO_ANSWER_TEXT]


@pytest.mark.anyio
@pytest.mark.real_time
async def test_the_address_decides_wherever_it_comes_from(no_keys: pytest.MonkeyPatch) -> None:
    deepseek = "https://api.deepseek.com/v1"
    assert OpenAIModel(client_args={"base_url": deepseek})._chat_service.name == "deepseek"
    no_keys.setenv("OPENAI_BASE_URL", deepseek)
    assert OpenAIModel()._chat_service.name == "deepseek"

    class Client:
        base_url = deepseek

    no_keys.delenv("OPENAI_BASE_URL")
    assert OpenAIModel(Client())._chat_service.name == "deepseek"
    assert OpenAIModel()._chat_service.name == "openai-chat"


@pytest.mark.anyio
@pytest.mark.real_time
@pytest.mark.parametrize(
    ("service", "piece", "returned"),
    [
        (LLAMA_CPP, {"reasoning_content": "Hm."}, {"reasoning_content": "Hm."}),
        (MISTRAL, {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}, {}),
        (OPENAI, {"reasoning_details": [{**TEXT, "text": "Hm."}]}, {"reasoning_details": [{**TEXT, "text": "Hm."}]}),
    ],
    ids=["llama.cpp", "Mistral", "a server like OpenRouter"],
)
async def test_a_server_gets_back_what_it_gave(service: Any, piece: Any, returned: dict[str, Any]) -> None:
    async def handle(exchange: Exchange) -> None:
        events = [event(chunk(piece)), event(chunk({"content": "4"})), event(chunk({}, "stop")), event("[DONE]")]
        await exchange.stream(*events, media=service.media)

    async with service.serving(handle) as (model, server):
        answer = await ask(model)
        messages: Any = [*HELLO, answer.message, QUESTION, answer.message, QUESTION]
        await ask(model, messages)
        bodies = server.requests[1].body["messages"]
    for message in (bodies[1], bodies[3]):
        assert message.items() >= returned.items()
        assert "Hm." in str(message)


@pytest.mark.parametrize("host", ["api.deepseek.com", "api.moonshot.ai"])
def test_a_call_of_another_provider_gets_an_empty_thought_where_one_is_needed(host: str) -> None:
    """Without it, a model that thinks refuses the conversation for good."""
    chat = chat_service(f"https://{host}/v1")
    use = {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}
    assert sent(chat, thought("anthropic"), use)["reasoning_content"] == " "
    assert sent(chat, thought(chat.name), use)["reasoning_content"] == "Hm."
    assert "reasoning_content" not in sent(chat, {"text": "4"})


@pytest.mark.parametrize(("model_id", "signed"), [("gemini-3-pro-preview", True), ("gemini-2.5-flash", False)])
def test_a_call_of_another_model_gets_a_stand_in_for_its_signature_where_gemini_wants_one(
    model_id: str, signed: bool
) -> None:
    """Gemini 3 refuses the first call of a step without one, behind Chat Completions too."""
    uses: Any = [{"toolUse": {"toolUseId": use_id, "name": "look", "input": {}}} for use_id in ("a", "b")]
    results: Any = [{"toolResult": {"toolUseId": use_id, "content": [{"text": "x"}]}} for use_id in ("a", "b")]
    messages: Any = [
        {"role": "user", "content": [{"text": "Hi"}]},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": results},
    ]
    call = model_call({"model_id": model_id}, messages, None, None, {})
    chat = chat_service("https://generativelanguage.googleapis.com/v1beta/openai/")
    first, second = completion_arguments(call, "Gemini", chat=chat)["messages"][1]["tool_calls"]
    stand_in = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert first.get("extra_content") == (stand_in if signed else None)
    assert "extra_content" not in second
