"""Models on OpenAI's service, and on every server with its protocol, through Chat Completions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

from repertory.backends.models.caching import CacheConfig, cache_routing
from repertory.backends.models.chat_services import COMPATIBLE, MISTRAL_CHAT, OPENAI_CHAT, ChatService, chat_service
from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.content import (
    BLANK_TEXT,
    base64_in,
    block_kind,
    cannot_take,
    chat_tool,
    document_in,
    image_in,
    input_of,
    text_in,
)
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.gemini_request import STAND_IN_SIGNATURE, wants_signatures
from repertory.backends.models.provider import ModelCall, StreamingConfig, fitted_call
from repertory.backends.models.sdk import ClientSettings, ModelService, SDKModel, with_params
from repertory.core.answer import is_mapping
from repertory.core.messages import is_one_text

if TYPE_CHECKING:
    from repertory.core.messages import Message
    from repertory.errors import ModelFailed

DEFAULT_MODEL_ID = "gpt-5.4"
OPENAI = ModelService(
    name="OpenAI",
    model="OpenAIModel",
    package="openai",
    client="AsyncOpenAI",
    root_error="OpenAIError",
    resource="chat.completions",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    keyless=True,
)


class OpenAIConfig(StreamingConfig, total=False):
    """Settings of an `OpenAIModel`."""

    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `max_completion_tokens`. They override ours; None removes
    a field.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    stream: bool | None
    """The same by another name; either can turn it off."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent; the service caches by itself."""
    reasoning_field: str | None
    """The field of an assistant message that returns earlier reasoning, such as `reasoning_content`, for servers that
    want it. By default as the service at the URL is known to take it; OpenAI and unknown servers get none.
    """


class ChatModel(SDKModel):
    """A model behind Chat Completions, through an SDK built like OpenAI's."""

    _chat: ClassVar[ChatService | None] = None
    """The service of this class; None if the URL says which one it is."""

    @cached_property
    def _chat_service(self) -> ChatService:
        """The service that is asked, as far as its class or its URL tells."""
        return self._chat or chat_service(service_url(self._sdk, self._settings))

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return chat_rules(self._service, self._chat_service, config)

    def _request(self, call: ModelCall) -> dict[str, Any]:
        return completion_arguments(call, self._service, chat=self._chat_service)

    def _reader(self, call: ModelCall) -> CompletionReader:
        return CompletionReader(self._chat_service, audio_format=_audio_format(call.config))

    def _milder(self, request: Mapping[str, Any], error: ModelFailed) -> dict[str, Any] | None:
        return unforced(request, error)


class OpenAIModel(ChatModel):
    """A model behind Chat Completions, through the official SDK. Building one connects to nothing.

    OpenAI's own service by default; Ollama, vLLM, llama.cpp and others by `client_args={"base_url": ...}` or
    `OPENAI_BASE_URL`. The key comes from `client_args`, else from `OPENAI_API_KEY`; a server given by its URL needs
    none. Many agents may use one model at once, from several event loops; each loop has its own connections, released
    by `aclose` in that loop.

    The SDK's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        model: The model's id; None for the default, or for `model_id=` in `config`.
        client: A client that you have made; Repertory does not close it.
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        OpenAIConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelRefused: If a filter of the provider refused the prompt. Change it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    OpenAIConfig = OpenAIConfig
    _known = OpenAIConfig
    _service = OPENAI.name
    _sdk = OPENAI
    _defaults = OpenAIConfig(model_id=DEFAULT_MODEL_ID)

    def __init__(
        self,
        model: str | None = None,
        /,
        client_args: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[OpenAIConfig],
    ) -> None:
        """`OpenAIConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI` and override the timeouts here. `client` is your own such
        client: it is used as it is, with its own timeouts and retries, and never closed. `read_timeout_s` bounds the
        time between two pieces of an answer, not the whole answer. Another first argument than an id is the client.
        """
        if not isinstance(first := cast("object", model), str | None):
            client, model = first, None
        super().__init__(model, config, ClientSettings(client, client_args, connect_timeout_s, read_timeout_s))


def service_url(sdk: ModelService, settings: ClientSettings) -> str | None:
    """The base URL of the client with these settings; None for the SDK's own service."""
    given = getattr(settings.client, "base_url", None) if settings.client is not None else None
    if given is None:
        args = settings.client_args
        given = args.get("base_url") or args.get("azure_endpoint") or os.environ.get(sdk.url_variable) or sdk.base_url
    return None if given is None else str(given)


def unforced(arguments: Mapping[str, Any], error: ModelFailed) -> dict[str, Any] | None:
    """The request with the forced tool as its only one, where a service lets a thinking model choose freely alone; None
    for any other refusal. DeepSeek, Moonshot and Qwen refuse so.
    """
    choice, words = arguments.get("tool_choice"), str(error).lower()
    if choice in (None, "auto", "none") or "tool_choice" not in words or not ("think" in words or "reason" in words):
        return None
    name = _named_tool(choice) if is_mapping(choice) else None
    tools = [tool for tool in arguments["tools"] if name in (None, _named_tool(tool))]
    return {**arguments, "tools": tools or arguments["tools"], "tool_choice": "auto"}


def _named_tool(tool: Mapping[str, object]) -> object:
    """The name in a tool, or in the choice of one; Responses has it one level higher than Chat Completions."""
    held = tool.get("function", tool)
    return held.get("name") if is_mapping(held) else None


def _audio_format(config: Mapping[str, Any]) -> str | None:
    """The format of the sound that `params` ask for."""
    params: Mapping[str, object] = config.get("params") or {}
    asked = params.get("audio")
    form = asked.get("format") if is_mapping(asked) else None
    return form if isinstance(form, str) else None


# Builds requests to Chat Completions: settings and a conversation as arguments of the SDK's call.
#
# Pure. What is ours (`metadata`, `tracking_id`) never leaves. Text alone goes as one string, which every server
# understands. Tool results are messages of their own and can hold only text, so their images and documents follow in a
# user message. Cache points are dropped: these services cache by themselves.
#
# Source: the OpenAI API, `POST /v1/chat/completions`.

ATTACHED = "[The attachments of this result follow in the next message.]"
"""Replaces content in a tool result that only a user message can hold."""


def chat_rules(service: str, chat: ChatService = OPENAI_CHAT, config: Mapping[str, Any] | None = None) -> ServiceRules:
    """The rules of Chat Completions at this service.

    Source: OpenAI takes ids of at most 40 characters, and names of 64; Mistral takes ids of exactly nine letters and
    digits, and no user's message directly after a tool's; ids as `functions.look:0` are Kimi's own. Sound is refused by
    OpenAI's models that are not for it.
    """
    settings = config or {}
    returned = chat.reasoning or settings.get("reasoning_field")
    model_id = str(settings.get("model_id"))
    silent = "audio" not in model_id and model_id.startswith(("gpt-", "o1", "o3", "o4"))
    return _chat_rules(service, chat, returned, hears=chat.name != OPENAI_CHAT.name or not silent)


@lru_cache(maxsize=64)
def _chat_rules(service: str, chat: ChatService, returned: str | None, *, hears: bool) -> ServiceRules:
    mistral = chat.name == MISTRAL_CHAT.name
    return ServiceRules(
        service=service,
        provider=chat.name,
        reasoning_provider=chat.reasoning_name,
        use_id_max=9 if mistral else 40 if chat.name in (OPENAI_CHAT.name, COMPATIBLE.name) else 64,
        use_id_exact=mistral,
        use_id_characters="a-zA-Z0-9" if mistral else "!-~",
        reasoning="signed" if returned == "thinking_blocks" else "any" if returned else "none",
        merges_roles=False,
        results_alone=mistral,
        audios=frozenset("*") if hears else frozenset(),
        media_in_answers=True,  # `_assistant` knows which of them may be left out
    )


def completion_arguments(
    call: ModelCall,
    service: str = OPENAI.name,
    fields: Mapping[str, Any] | None = None,
    *,
    chat: ChatService = OPENAI_CHAT,
) -> dict[str, Any]:
    """The arguments of one call. `fields`: what the settings say besides those of `OpenAIConfig`; `params` override
    them. Errors: `Invalid` for a block that the service cannot take.
    """
    call = fitted_call(call, chat_rules(service, chat, call.config))
    config: Mapping[str, Any] = call.config
    arguments: dict[str, Any] = {"model": config.get("model_id"), "messages": sent_messages(call, service, chat)}
    if tools := [chat_tool(spec) for spec in call.tools]:
        arguments["tools"] = tools
        if call.tool_choice:
            arguments["tool_choice"] = _tool_choice(call.tool_choice)
    if streams(config):
        # Without this option the service sends no usage in a stream, and nothing could be counted.
        arguments |= {"stream": True, "stream_options": {"include_usage": True}}
    return with_params(arguments, {**cache_routing(config), **(fields or {}), **(config.get("params") or {})})


def streams(config: Mapping[str, Any]) -> bool:
    return config.get("streaming") is not False and config.get("stream") is not False


def sent_messages(call: ModelCall, service: str, chat: ChatService = OPENAI_CHAT) -> list[dict[str, Any]]:
    """The conversation as messages of the service."""
    system = call.system_text
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in call.messages:
        if message["role"] == "user":
            sent += _user(message, service, chat)
        else:
            sent.append(_assistant(message, call.config.get("reasoning_field"), service, chat))
    if chat.signatures == "extra_content" and wants_signatures(str(call.config.get("model_id"))):
        for message in sent:
            calls = message.get("tool_calls")
            if calls and "extra_content" not in calls[0]:  # Gemini wants one, also for another model's calls.
                calls[0]["extra_content"] = {"google": {"thought_signature": STAND_IN_SIGNATURE.decode()}}
    return sent


def _user(message: Message, service: str, chat: ChatService) -> list[dict[str, Any]]:
    """Tool messages first, directly after the assistant's as required; then everything else as one user message."""
    if is_one_text(message["content"]):
        return [{"role": "user", "content": _together(_parts(message["content"][0], service))}]
    tools: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in message["content"]:
        if "toolResult" in block:
            text, attached = _tool_content(block["toolResult"]["content"], service)
            tools.append({"role": "tool", "tool_call_id": block["toolResult"]["toolUseId"], "content": text})
            parts += attached
        elif "providerContent" not in block:  # which only an answer may have
            parts += _parts(block, service)
    # Mistral refuses a user's message directly after a tool's.
    if parts and tools and chat.name == MISTRAL_CHAT.name:
        tools.append({"role": "assistant", "content": ATTACHED})
    if parts or not tools:
        return [*tools, {"role": "user", "content": _together(parts)}]
    return tools


def _tool_content(content: Sequence[Mapping[str, Any]], service: str) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tool message, and the content that it cannot hold."""
    parts = [part for block in content for part in _parts(block, service)]
    attached = [part for part in parts if part["type"] != "text"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join([*texts, ATTACHED] if attached else texts), attached


def _assistant(message: Message, reasoning_field: str | None, service: str, chat: ChatService) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[Mapping[str, Any]] = []
    extra: dict[str, Any] = {}
    media: list[str] = []
    for block in message["content"]:
        if "text" in block:
            texts.append(block["text"])
        elif "toolUse" in block:
            calls.append(_tool_call(block["toolUse"], chat))
        elif "reasoningContent" in block:
            thoughts.append(block["reasoningContent"])
        elif "providerContent" in block:
            content = block["providerContent"]["content"]
            extra |= {name: content[name] for name in _OWN_FIELDS if name in content}
        elif (text := text_in(block)) is not None:
            texts.append(text)
        elif (kind := block_kind(block)) in STOOD:
            media.append(kind)
        elif "cachePoint" not in block:
            raise cannot_take(kind, service, "an assistant message holds only text there", sorted(block))
    texts = [text for text in texts if text.strip()]
    if media:
        texts += [STOOD[kind] for kind in media if kind != "audio" or not texts]  # the text has the words of a sound
    joined = "\n".join(texts)
    # Blank text is refused, and so is a missing content without calls.
    sent: dict[str, Any] = {"role": "assistant", "content": joined or (None if calls else BLANK_TEXT)}
    if calls:
        sent["tool_calls"] = calls
    if thoughts or extra:
        sent |= _returned(thoughts, joined, extra, reasoning_field, chat)
    if calls and chat.reasoning_needed and chat.reasoning is not None:
        sent.setdefault(reasoning_field or chat.reasoning, _NO_REASONING)
    return sent


_NO_REASONING = " "
"""Stands for the reasoning of an answer that had none, such as one of another provider."""
_OWN_FIELDS = ("reasoning_details", "provider_specific_fields")
"""Fields of an answer that go back as they came."""
STOOD = {
    "image": "(An image stood here.)",
    "audio": "(A sound stood here.)",
    "video": "(A video stood here.)",
    "document": "(A document stood here.)",
}
"""Texts in the place of media in an answer, which only users may send."""


def _returned(
    reasoning: Sequence[Mapping[str, Any]],
    text: str,
    extra: Mapping[str, Any],
    reasoning_field: str | None,
    chat: ChatService,
) -> dict[str, Any]:
    """The fields of an assistant message that return earlier reasoning as the service takes it."""
    fields: dict[str, Any] = dict(extra)
    thoughts = [thought for each in reasoning if (thought := str(each.get("reasoningText", {}).get("text", "")))]
    match reasoning_field or chat.reasoning:
        case "thinking_blocks" if reasoning:
            return fields | {"thinking_blocks": [_thinking_block(each) for each in reasoning]}
        case "thinking" if thoughts:
            parts: list[dict[str, Any]] = [
                {"type": "thinking", "thinking": [{"type": "text", "text": thought}]} for thought in thoughts
            ]
            return fields | {"content": [*parts, *([{"type": "text", "text": text}] if text else ())]}
        case "reasoning_details" if thoughts:
            return fields if "reasoning_details" in fields else {**fields, "reasoning": "\n".join(thoughts)}
        case str(name) if thoughts:
            return {**fields, name: "\n".join(thoughts)}
        case _:
            return fields


def _thinking_block(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    if "redactedContent" in reasoning:
        return {"type": "redacted_thinking", "data": reasoning["redactedContent"].decode(errors="replace")}
    spoken = reasoning["reasoningText"]
    return {"type": "thinking", "thinking": spoken.get("text", ""), "signature": spoken.get("signature", "")}


def _tool_call(use: Mapping[str, Any], chat: ChatService) -> dict[str, Any]:
    function = {"name": use["name"], "arguments": json.dumps(input_of(use), ensure_ascii=False)}
    made: dict[str, Any] = {"id": use["toolUseId"], "type": "function", "function": function}
    if chat.signatures and use.get("reasoningSignature"):
        signature = {"thought_signature": use["reasoningSignature"]}
        made[chat.signatures] = {"google": signature} if chat.signatures == "extra_content" else signature
    return made


def _together(parts: Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Text alone as one string, anything else as a list."""
    if any(part["type"] != "text" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts) or BLANK_TEXT


def _parts(block: Mapping[str, Any], service: str) -> list[dict[str, Any]]:
    """The block as parts of a message; none for blank text and marks."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        return [{"type": "image_url", "image_url": {"url": image_in(block, service).url}}]
    if "document" in block:
        return [_document(block, service)]
    if "audio" in block:
        audio = block["audio"]
        data = base64_in("audio", audio, service)
        return [{"type": "input_audio", "input_audio": {"data": data, "format": audio.get("format", "wav")}}]
    if "cachePoint" in block:
        return []
    raise cannot_take(block_kind(block), service, "it has no such blocks", sorted(block))


def _document(block: Mapping[str, Any], service: str) -> dict[str, Any]:
    """A PDF as a file; other documents as text, since the service takes no other files."""
    document = document_in(block, service)
    if document.pdf is None:
        return {"type": "text", "text": document.text}
    return {"type": "file", "file": document.file}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if "tool" in choice:
        return {"type": "function", "function": {"name": choice["tool"]["name"]}}
    return "required" if "any" in choice else "auto"
