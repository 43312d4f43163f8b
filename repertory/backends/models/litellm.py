"""Models that LiteLLM knows the way to, through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio
import anyio.lowlevel

from repertory.backends.models.anthropic_citations import stored_citation
from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.chat_services import ChatService
from repertory.backends.models.completions import CompletionReader, mappings_in
from repertory.backends.models.content import text_in
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.openai import chat_rules, completion_arguments, streams, unforced
from repertory.backends.models.provider import NONSENSE, ModelCall, StreamingConfig
from repertory.backends.models.sdk import (
    ClientSettings,
    ModelService,
    OpenedClient,
    SDKModel,
    as_plain,
    connection_errors,
    from_other_error,
    refusal_error,
    released,
)
from repertory.core.answer import is_mapping, mapping_field
from repertory.errors import Invalid, ModelFailed, ModelStreamBroken, RepertoryError

if TYPE_CHECKING:
    from repertory.core.converse import StreamEvent

LITELLM = ModelService(
    name="LiteLLM",
    model="LiteLLMModel",
    package="litellm",
    key_variable="the provider's variable, such as OPENAI_API_KEY",
    url_variable="api_base in client_args",
    keyless=True,
)


class LiteLLMConfig(StreamingConfig, total=False):
    """Settings of a `LiteLLMModel`."""

    model_id: str
    """LiteLLM's name of a model, such as `anthropic/claude-sonnet-4-6` or `openai/gpt-5.4`."""
    params: Mapping[str, Any] | None
    """Further arguments of the call, such as `temperature` or `max_tokens`. They override ours; None removes one."""
    stream: bool | None
    """`streaming` by another name; either can turn it off."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent."""


class LiteLLMModel(SDKModel):
    """A model through LiteLLM. Building one connects to nothing, and loads nothing; the first call does.

    LiteLLM runs on asyncio only; on trio a call is `ModelFailed`. It keeps the connections of a process itself, for all
    models, so `aclose` closes none. Its own retries are off, so that the caller decides about retries.

    Cancellation: closing the stream early releases its connection.

    Args:
        client_args: Arguments for the client of the service's own package.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        LiteLLMConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelRefused: If a filter of the provider refused the prompt. Change it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that cannot be sent. Leave it out.
    """

    LiteLLMConfig = LiteLLMConfig
    _known = LiteLLMConfig
    _service = LITELLM.name
    _sdk = LITELLM
    _asks_late = True

    def __init__(
        self,
        client_args: Mapping[str, Any] | None = None,
        *,
        read_timeout_s: float = 120.0,
        **config: Unpack[LiteLLMConfig],
    ) -> None:
        """`LiteLLMConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `litellm.acompletion`, such as `api_key` and `api_base`, for every call.
        """
        settings = ClientSettings(None, client_args, read_timeout_s=read_timeout_s)
        self.client_args = settings.client_args
        super().__init__(None, config, settings)

    @staticmethod
    def _open(service: ModelService, settings: ClientSettings) -> OpenedClient:
        return import_module("litellm"), None

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return chat_rules(self._service, chat_behind(config))

    def _request(self, call: ModelCall) -> dict[str, Any]:
        if type(anyio.lowlevel.current_token().native_token).__module__.startswith("trio"):
            raise ModelFailed("LiteLLM runs on asyncio only: run the agent there, or use the class of the provider")
        model_id: str | None = call.config.get("model_id")
        if not model_id:
            raise Invalid("LiteLLMModel needs a model_id, such as 'anthropic/claude-sonnet-4-6'")
        request = completion_arguments(call, self._service, chat=chat_behind(call.config))
        request |= request.pop("extra_body", {})
        if any("cachePoint" in block for block in call.system_blocks):
            request["messages"][0]["content"] = _system(call.system_blocks)
        if not streams(call.config) or request.get("stream") is False:
            request.pop("stream", None)
            request.pop("stream_options", None)
        if self.client_args.get("use_litellm_proxy") and not model_id.startswith("litellm_proxy/"):
            request["model"] = f"litellm_proxy/{model_id}"
        return {"timeout": self._settings.read_timeout_s, "max_retries": 0, **self.client_args, **request}

    def _reader(self, call: ModelCall) -> LiteLLMReader:
        return LiteLLMReader(chat_behind(call.config))

    async def _ask(self, client: Any, request: Mapping[str, Any]) -> Any:
        answer = await client.acompletion(**request)
        return released(aiter(answer), answer.aclose, self._errors()) if request.get("stream") else answer

    def _fields(self, piece: Any, *, whole: bool) -> Mapping[str, object]:
        return mapping_field(as_plain(piece), *(("answer", "answer") if whole else ("stream", "piece")))

    def _errors(self) -> tuple[type[Exception], ...]:
        return (*connection_errors(import_module("httpx")), *NONSENSE, import_module("openai").OpenAIError)

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        return _error(import_module("litellm"), error, answering=answering)

    def _milder(self, request: Mapping[str, Any], error: ModelFailed) -> dict[str, Any] | None:
        return unforced(request, error)


def chat_behind(config: Mapping[str, Any]) -> ChatService:
    """The service behind a model of LiteLLM, by the model's name, with the form of reasoning that it accepts.

    Source: docs.litellm.ai/docs/reasoning_content, and the library's translations of messages.
    """
    model_id = str(config.get("model_id")).lower()
    provider, _, _ = model_id.removeprefix("litellm_proxy/").partition("/")
    if "claude" in model_id:
        return ChatService(name="litellm", reasoning="thinking_blocks", reasoning_name="anthropic")
    if "gemini" in model_id:
        return ChatService(name="litellm", signatures="provider_specific_fields")
    if provider in ("deepseek", "moonshot"):
        return ChatService(
            name="litellm", reasoning="reasoning_content", reasoning_name=provider, reasoning_needed=True
        )
    return ChatService(name="litellm")


_RETURNED = ("compaction_blocks", "web_search_results", "tool_results", "server_tool_calls")
"""The `provider_specific_fields` of an answer from which LiteLLM builds the provider's own blocks again."""
_SERVER_SIDE = "srvtoolu_"
"""Begins the id of a tool use that Anthropic has run itself."""


class LiteLLMReader(CompletionReader):
    """Reads one answer of LiteLLM, which puts what is Anthropic's own into fields of its own.

    Source: docs.litellm.ai, `thinking_blocks` and `provider_specific_fields` of a message and of a delta.
    """

    __slots__ = ("_fields",)

    def __init__(self, service: ChatService) -> None:
        super().__init__(service)
        self._fields: dict[str, object] = {}

    def finish(self) -> Iterator[StreamEvent]:
        if self._fields:
            yield from self._part({"provider_specific_fields": self._fields})
        yield from super().finish()

    def _on_delta(self, delta: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        fields = delta.get("provider_specific_fields")
        if is_mapping(fields):
            self._fields |= {name: fields[name] for name in _RETURNED if fields.get(name)}
            cited = [stored_citation(cited) for cited in _citations_in(fields)]
            self._held.add(*cited)
            self._citations += cited
        calls = mappings_in(delta, "tool_calls")
        if ran := [call for call in calls if str(call.get("id")).startswith(_SERVER_SIDE)]:
            self._fields.setdefault("server_tool_calls", ran)
            others = [call for call in calls if not str(call.get("id")).startswith(_SERVER_SIDE)]
            delta = {**delta, "tool_calls": others}
        yield from super()._on_delta(delta, answer_id)

    def _on_reasoning(self, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        if not delta.get("thinking_blocks"):
            yield from super()._on_reasoning(delta)
            return
        for block in mappings_in(delta, "thinking_blocks"):
            if isinstance(data := block.get("data"), str) and block.get("type") == "redacted_thinking":
                yield from self._begin("reasoning")
                yield from self._speak("reasoning", {"reasoningContent": {"redactedContent": data.encode()}})
                yield from self._fall_silent()
            if isinstance(thought := block.get("thinking"), str) and thought:
                yield from self._speak("reasoning", {"reasoningContent": {"text": thought}})
            if isinstance(signature := block.get("signature"), str) and signature:
                yield from self._speak("reasoning", {"reasoningContent": {"signature": signature}})
                yield from self._fall_silent()  # A signature ends its block.


def _citations_in(fields: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The citations of a piece, or of a whole answer, where they are a list for each text."""
    if is_mapping(one := fields.get("citation")):
        yield one
    yield from mappings_in({"citations": _flat(fields.get("citations"))}, "citations")


def _flat(lists: object) -> list[object]:
    groups = cast("list[object]", lists) if isinstance(lists, list) else []
    return [each for group in groups for each in (cast("list[object]", group) if isinstance(group, list) else [group])]


def _system(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The system prompt with the marks that LiteLLM passes on to providers that have cache points."""
    sent: list[dict[str, Any]] = []
    for block in blocks:
        if "cachePoint" in block and sent:
            ttl = {"ttl": block["cachePoint"]["ttl"]} if block["cachePoint"].get("ttl") else {}
            sent[-1]["cache_control"] = {"type": "ephemeral", **ttl}
        elif text := text_in(block):
            sent.append({"type": "text", "text": text})
    return sent


def _error(litellm: Any, error: Exception, *, answering: bool) -> RepertoryError:
    """Our error for one of LiteLLM's, which are those of OpenAI's SDK with more names."""
    text = str(getattr(error, "message", None) or error)
    if isinstance(error, litellm.exceptions.ContextWindowExceededError):
        return refusal_error(LITELLM, 413, text)
    status = getattr(error, "status_code", None)
    if answering and isinstance(status, int) and status >= 500:
        return ModelStreamBroken(f"the connection ended within an answer: {text}")
    if isinstance(status, int) or isinstance(error, import_module("openai").OpenAIError):
        return refusal_error(LITELLM, status if isinstance(status, int) else 0, text)
    return from_other_error(LITELLM, error, import_module("httpx"), answering=answering)
