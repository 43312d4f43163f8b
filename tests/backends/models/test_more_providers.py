"""What is particular to the services of Mistral, Meta, llama.cpp, Writer, Ollama and Google, and the Responses API."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from repertory import Agent, OllamaModel, tool
from repertory.backends.models.gemini import content_request
from repertory.backends.models.provider import ProviderModel, model_call
from repertory.core.messages import Message, ToolSpec
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed
from tests.backends.models.sdk_services import (
    DONE,
    GEMINI,
    LLAMA_API,
    LLAMA_CPP,
    MISTRAL,
    OLLAMA,
    OLLAMA_END,
    PROVIDERS,
    RESPONSES,
    USAGE,
    WRITER,
    SdkService,
    ask,
    chunk,
    event,
    gemini_piece,
    line,
    ollama_piece,
)
from tests.backends.models.wire_server import Exchange, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

NEW = (MISTRAL, LLAMA_API, LLAMA_CPP, WRITER, RESPONSES, OLLAMA, GEMINI)
on_new = pytest.mark.parametrize("service", NEW, ids=lambda service: service.name)
PICTURE = b"\x89PNG"
TOOLS: list[ToolSpec] = [
    {
        "name": "add",
        "description": "Adds.",
        "inputSchema": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]
USED: list[Message] = [
    {"role": "user", "content": [{"text": "2+2?"}, {"image": {"format": "png", "source": {"bytes": PICTURE}}}]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 2}}}]},
    {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "tooluse_1", "status": "success", "content": [{"text": "4"}]}}],
    },
]
_CALL = {"name": "add", "arguments": '{"a": 2}'}
_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add"}
_COMPLETION = [
    event(chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": _CALL}]})),
    event(chunk({}, "tool_calls")),
    event(chunk(usage=USAGE)),
    DONE,
]


def asking_for_a_tool(service: SdkService) -> list[bytes]:
    """An answer that uses `add` with `a` = 2."""
    if service is OLLAMA:
        use = {"tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
        return [line(ollama_piece("", message=use)), line(ollama_piece("", **OLLAMA_END))]
    if service is GEMINI:
        use = {"functionCall": {"name": "add", "args": {"a": 2}}, "thoughtSignature": base64.b64encode(b"s").decode()}
        return [event(gemini_piece({"text": "Hm", "thought": True}, use)), event(gemini_piece(finish="STOP"))]
    if service is RESPONSES:
        done = {**_ITEM, "arguments": _CALL["arguments"]}
        return [
            event({"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "arguments": ""}}),
            event({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":'}),
            event({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": " 2}"}),
            event({"type": "response.output_item.done", "output_index": 0, "item": done}),
            event({"type": "response.completed", "response": {**service.whole, "output": [done]}}),
        ]
    return _COMPLETION


@tool
def add(a: int) -> int:
    """Add two.

    Args:
        a: A number.
    """
    return a + 2


@on_new
async def test_an_agent_uses_a_tool_and_tells_its_result(service: SdkService) -> None:
    async def handle(exchange: Exchange) -> None:
        told = any(sign in str(exchange.body) for sign in ("function_call_output", "'tool'", "functionResponse"))
        answer = service.text("It is 4.") if told else asking_for_a_tool(service)
        await exchange.stream(*answer, media=service.media)

    async with service.serving(handle) as (model, server):
        agent = Agent(model, tools=[add], callback_handler=None)
        result = await agent.invoke_async("2+2?")
        assert str(result).strip() == "It is 4."
        assert agent.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "4"}]
        assert "add" in str(server.requests[0].body["tools"])


@on_new
async def test_a_conversation_with_a_tool_and_a_picture_is_sent(service: SdkService) -> None:
    async with service.serving(service.streaming(*service.text("ok"))) as (model, server):
        await ask(model, USED, tool_specs=TOOLS, system_prompt="Be brief.")
        sent = str(server.requests[0].body)
    assert "Be brief." in sent
    assert base64.b64encode(PICTURE).decode() in sent
    assert "'4'" in sent


@on_new
async def test_a_tool_may_be_demanded(service: SdkService) -> None:
    async with service.serving(service.streaming(*asking_for_a_tool(service))) as (model, server):
        answer = await ask(model, tool_specs=TOOLS, tool_choice={"tool": {"name": "add"}})
        assert "add" in str(
            server.requests[0].body.get("tool_choice", server.requests[0].body.get("toolConfig", "add"))
        )
    use = next(block["toolUse"] for block in answer.message["content"] if "toolUse" in block)
    assert (use["name"], use["input"], answer.stop_reason) == ("add", {"a": 2}, "tool_use")


@pytest.mark.parametrize("service", [MISTRAL, LLAMA_API, WRITER, GEMINI], ids=lambda service: service.name)
async def test_a_missing_key_says_what_to_set(service: SdkService, no_keys: pytest.MonkeyPatch) -> None:
    """Also when there is a key for OpenAI, which no other service may see."""
    no_keys.setenv("OPENAI_API_KEY", "for OpenAI alone")
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        no_keys.delenv(name, raising=False)
    model = type(service.model("http://127.0.0.1:1"))(model_id="m")
    with pytest.raises(ModelFailed, match=f"set {service.key_variable}"):
        await ask(model)


@pytest.mark.parametrize("service", [MISTRAL, LLAMA_API, WRITER], ids=lambda service: service.name)
async def test_key_and_address_come_from_the_services_own_variables(
    service: SdkService, no_keys: pytest.MonkeyPatch
) -> None:
    no_keys.setenv("OPENAI_API_KEY", "for OpenAI alone")
    async with wire_server(service.streaming(*service.text("Hello"))) as server:
        no_keys.setenv(service.key_variable, "own")
        no_keys.setenv(service.sdk.url_variable, server.url)
        model = type(service.model(server.url))(model_id="m")
        await ask(model)
        await model.aclose()
        assert server.requests[0].headers["authorization"] == "Bearer own"


@pytest.mark.parametrize(
    "service", [each for each in NEW if each not in (LLAMA_CPP, RESPONSES)], ids=lambda service: service.name
)
async def test_a_missing_model_id_is_said_before_anything_is_sent(service: SdkService) -> None:
    async with service.serving(service.streaming(*service.text("x")), model_id=None) as (model, server):
        with pytest.raises(Invalid, match="model_id"):
            await ask(model)
        assert not server.requests


async def test_settings_are_fields_of_the_request() -> None:
    for service, settings in [
        (MISTRAL, {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9}),
        (LLAMA_API, {"max_completion_tokens": 5, "top_k": 3, "repetition_penalty": 1.1, "temperature": 0.5}),
        (WRITER, {"max_tokens": 5, "stop": ["x"], "stream_options": {"include_usage": True}}),
    ]:
        async with service.serving(service.streaming(*service.text("x")), **settings) as (model, server):
            await ask(model)
            assert server.requests[0].body.items() >= settings.items()


async def test_mistral_gets_ids_of_nine_characters_and_no_stream_options() -> None:
    async with MISTRAL.serving(MISTRAL.streaming(*MISTRAL.text("x"))) as (model, server):
        await ask(model, USED, tool_specs=TOOLS)
        body = server.requests[0].body
    use = body["messages"][1]["tool_calls"][0]["id"]
    assert len(use) == 9
    assert use.isalnum()
    assert body["messages"][2]["tool_call_id"] == use
    assert "stream_options" not in body


async def test_mistral_thinks_in_parts_of_its_content() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "4"}]
    events = [event(chunk({"content": parts})), event(chunk({"content": "."})), event(chunk({}, "stop")), DONE]
    async with MISTRAL.serving(MISTRAL.streaming(*events)) as (model, _):
        answer = await ask(model)
    thought = {"reasoningContent": {"reasoningText": {"text": "Hm."}, "provider": "mistral"}}
    assert answer.message["content"] == [thought, {"text": "4."}]


def test_mistral_refuses_a_temperature_that_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="temperature"):
        MISTRAL.model("http://127.0.0.1:1", temperature=1.5)


async def test_mistrals_own_names_of_arguments_are_understood() -> None:
    async with wire_server(MISTRAL.streaming(*MISTRAL.text("Hello"))) as server:
        kind: Any = type(MISTRAL.model(server.url))
        model: ProviderModel = kind("key", client_args={"server_url": server.url, "timeout_ms": 20_000}, model_id="m")
        await ask(model)
        await model.aclose()
        assert server.requests[0].path == "/v1/chat/completions"


async def test_llama_cpp_counts_tokens_with_its_own_template() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(200, {"tokens": [1, 2, 3]})

    async with LLAMA_CPP.serving(handle, use_native_token_count=True) as (model, server):
        assert await model.count_tokens(USED[:1], TOOLS, "Be brief.") == 3
        assert server.requests[0].path == "/tokenize"
        assert server.requests[0].body.keys() == {"messages", "tools"}


async def test_llama_cpp_hears_sound() -> None:
    sound: Message = {"role": "user", "content": [{"audio": {"format": "wav", "source": {"bytes": b"RIFF"}}}]}  # type: ignore[typeddict-unknown-key]
    async with LLAMA_CPP.serving(LLAMA_CPP.streaming(*LLAMA_CPP.text("x"))) as (model, server):
        await ask(model, [sound])
        (part,) = server.requests[0].body["messages"][0]["content"]
    assert part == {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}}


async def test_ollama_gets_options_and_how_long_to_keep_the_model() -> None:
    settings = {
        "options": {"num_ctx": 4096, "temperature": 0.9},
        "temperature": 0.1,
        "max_tokens": 5,
        "stop_sequences": ["x"],
        "keep_alive": "10m",
        "additional_args": {"think": True},
    }
    async with OLLAMA.serving(OLLAMA.streaming(*OLLAMA.text("x")), **settings) as (model, server):
        await ask(model, USED, tool_specs=TOOLS)
        body = server.requests[0].body
    assert body["options"] == {"num_ctx": 4096, "temperature": 0.1, "num_predict": 5, "stop": ["x"]}
    assert (body["keep_alive"], body["think"]) == ("10m", True)
    assert body["messages"][0]["images"] == [base64.b64encode(PICTURE).decode()]
    assert body["messages"][1]["tool_calls"] == [{"function": {"name": "add", "arguments": {"a": 2}}}]
    assert body["messages"][2] == {"role": "tool", "content": "4", "tool_name": "add"}


async def test_ollama_says_in_the_stream_that_the_prompt_is_too_long() -> None:
    events = [line(ollama_piece("Hm")), line({"error": "the prompt is longer than the context length"})]
    async with OLLAMA.serving(OLLAMA.streaming(*events)) as (model, _):
        with pytest.raises(ContextWindowOverflowException):
            await ask(model)


async def test_ollamas_host_is_the_first_argument() -> None:
    async with wire_server(OLLAMA.streaming(*OLLAMA.text("Hello"))) as server:
        model = OllamaModel(server.url, model_id="m", ollama_client_args={"headers": {"x": "y"}})
        await ask(model)
        await model.aclose()
        assert server.requests[0].headers["x"] == "y"


async def test_two_uses_of_a_tool_have_two_ids() -> None:
    use = {"tool_calls": [{"function": {"name": "add", "arguments": {}}}] * 2}
    events = [line(ollama_piece("", message=use)), line(ollama_piece("", **OLLAMA_END))]
    async with OLLAMA.serving(OLLAMA.streaming(*events)) as (model, _):
        answer = await ask(model)
        later = await ask(model, USED)
    ids = {block["toolUse"]["toolUseId"] for each in (answer, later) for block in each.message["content"]}
    assert len(ids) == 4


async def test_gemini_gets_its_signatures_back() -> None:
    async with GEMINI.serving(GEMINI.streaming(*asking_for_a_tool(GEMINI))) as (model, server):
        answer = await ask(model, tool_specs=TOOLS)
        use = answer.message["content"][1]["toolUse"]
        assert use.get("reasoningSignature") == base64.b64encode(b"s").decode()
        await ask(model, [*USED[:1], answer.message], tool_specs=TOOLS)
        parts = server.requests[1].body["contents"][1]["parts"]
    assert parts[0] == {"text": "Hm", "thought": True}
    assert base64.urlsafe_b64decode(parts[1]["thoughtSignature"]) == b"s"
    assert parts[1]["functionCall"]["args"] == {"a": 2}


async def test_geminis_settings_are_those_of_its_sdk() -> None:
    params = {"temperature": 0.5, "max_output_tokens": 5, "thinking_config": {"thinking_budget": 0}}
    own = [{"google_search": {}}]
    async with GEMINI.serving(GEMINI.streaming(*GEMINI.text("x")), params=params, gemini_tools=own) as (model, server):
        await ask(model, tool_specs=TOOLS, tool_choice={"any": {}}, system_prompt="Be brief.")
        body = server.requests[0].body
    assert body["generationConfig"]["maxOutputTokens"] == 5
    assert body["generationConfig"]["thinkingConfig"] in ({"thinkingBudget": 0}, {"thinking_budget": 0})
    assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert {"googleSearch": {}} in body["tools"]
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "ANY"}


def test_geminis_results_name_their_tool() -> None:
    request = content_request(model_call({"model_id": "m"}, USED, TOOLS, None, {}))
    (part,) = request["contents"][2]["parts"]
    assert part["function_response"]["name"] == "add"
    assert part["function_response"]["response"] == {"output": [{"text": "4"}]}


async def test_gemini_counts_tokens_of_messages() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(200, {"totalTokens": 40})

    async with GEMINI.serving(handle, use_native_token_count=True) as (model, server):
        assert await model.count_tokens(USED[:1]) == 40
        assert server.requests[0].path.endswith(":countTokens")


def test_functions_are_no_tools_of_geminis_own() -> None:
    from google.genai import types  # type: ignore[import-untyped, unused-ignore]

    functions = types.Tool(function_declarations=[types.FunctionDeclaration(name="add")])
    with pytest.raises(ValueError, match="gemini_tools"):
        GEMINI.model("http://127.0.0.1:1", gemini_tools=[functions])


async def test_the_responses_api_says_why_it_failed() -> None:
    failed = {"status": "failed", "error": {"code": "context_length_exceeded", "message": "too long"}}
    async with RESPONSES.serving(RESPONSES.streaming(event({"type": "response.failed", "response": failed}))) as (
        model,
        _,
    ):
        with pytest.raises(ContextWindowOverflowException, match="too long"):
            await ask(model)


async def test_the_responses_api_may_stop_early_and_think_and_cite() -> None:
    note = {"type": "url_citation", "url": "https://x.test", "title": "X"}
    ended = {**RESPONSES.whole, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    events = [
        event({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Hm."}),
        event({"type": "response.output_text.delta", "output_index": 1, "delta": "4"}),
        event({"type": "response.output_text.annotation.added", "output_index": 1, "annotation": note}),
        event({"type": "response.incomplete", "response": ended}),
    ]
    async with RESPONSES.serving(RESPONSES.streaming(*events)) as (model, _):
        answer = await ask(model)
    assert answer.stop_reason == "max_tokens"
    assert answer.message["content"][0] == {
        "reasoningContent": {"reasoningText": {"text": "Hm."}, "provider": "openai"}
    }
    assert "https://x.test" in str(answer.message["content"][1])


async def test_the_responses_api_gets_items_and_stores_nothing() -> None:
    tools = {"params": {"tools": [{"type": "web_search"}], "max_output_tokens": 9}}
    async with RESPONSES.serving(RESPONSES.streaming(*RESPONSES.text("x")), **tools, stateful=True) as (model, server):
        await ask(model, USED, tool_specs=TOOLS, system_prompt="Be brief.")
        body = server.requests[0].body
    assert body["input"][1] == {"type": "function_call", "call_id": "tooluse_1", "name": "add", "arguments": '{"a": 2}'}
    assert body["input"][2] == {"type": "function_call_output", "call_id": "tooluse_1", "output": "4"}
    assert (body["instructions"], body["store"], body["max_output_tokens"]) == ("Be brief.", False, 9)
    assert [each["type"] for each in body["tools"]] == ["function", "web_search"]


@pytest.mark.parametrize("service", PROVIDERS, ids=lambda service: service.name)
async def test_options_for_models_of_users_are_passed_over(service: SdkService) -> None:
    options = {"invocation_state": {}, "agent_metadata": None, "cancel_signal": None, "structured_output_model": None}
    async with service.serving(service.streaming(*service.text("Hello"))) as (model, _):
        assert (await ask(model, **options)).message["content"] == [{"text": "Hello"}]
