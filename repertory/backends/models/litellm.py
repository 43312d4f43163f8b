"""Models that LiteLLM knows the way to, through it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import anyio.lowlevel
import anyio.to_thread

from repertory.backends.loop_clients import LoopClients
from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.content import text_in
from repertory.backends.models.openai import CompletionReader, completion_arguments, streams
from repertory.backends.models.provider import NONSENSE, BaseModelConfig, ModelCall, ProviderModel
from repertory.backends.models.sdk import (
    ModelService,
    as_plain,
    connection_errors,
    from_other_error,
    need,
    refusal_error,
    released,
)
from repertory.core.answer import mapping_field
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


class LiteLLMConfig(BaseModelConfig, total=False):
    """Settings of a `LiteLLMModel`."""

    model_id: str
    """LiteLLM's name of a model, such as `anthropic/claude-sonnet-4-6` or `openai/gpt-5.4`."""
    params: Mapping[str, Any] | None
    """Further arguments of the call, such as `temperature` or `max_tokens`. They override ours; None removes one."""
    stream: bool | None
    """True to stream the answer (the default), False to get it whole."""
    streaming: bool | None
    """The same by another name; either can turn it off."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent."""


class LiteLLMModel(ProviderModel):
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
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that cannot be sent. Leave it out.
    """

    LiteLLMConfig = LiteLLMConfig
    _known = LiteLLMConfig
    _service = LITELLM.name

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
        need(LITELLM)
        self.client_args = dict(client_args or {})
        self._timeout_s = read_timeout_s
        super().__init__({}, config, LoopClients(_load))

    async def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        if type(anyio.lowlevel.current_token().native_token).__module__.startswith("trio"):
            raise ModelFailed("LiteLLM runs on asyncio only: run the agent there, or use the class of the provider")
        request = self._request(call)
        reader = CompletionReader()
        answering = False
        litellm: Any = await self._clients.get()
        errors = (*_connection_errors(), *NONSENSE, import_module("openai").OpenAIError)
        try:
            answer = await litellm.acompletion(**request)
            if not request.get("stream"):
                for event in reader.whole(mapping_field(as_plain(answer), "answer", "answer")):
                    yield event
            else:
                async with aclosing(released(aiter(answer), answer.aclose, errors)) as pieces:
                    async for piece in pieces:
                        answering = True
                        for event in reader.feed(mapping_field(as_plain(piece), "stream", "piece")):
                            yield event
        except errors as error:
            raise _error(litellm, error, answering=answering) from error
        for event in reader.finish():
            yield event

    def _request(self, call: ModelCall) -> dict[str, Any]:
        model_id: str | None = call.config.get("model_id")
        if not model_id:
            raise Invalid("LiteLLMModel needs a model_id, such as 'anthropic/claude-sonnet-4-6'")
        request = completion_arguments(call, self._service)
        request |= request.pop("extra_body", {})
        if any("cachePoint" in block for block in call.system_blocks):
            request["messages"][0]["content"] = _system(call.system_blocks)
        if not streams(call.config) or request.get("stream") is False:
            request.pop("stream", None)
            request.pop("stream_options", None)
        if self.client_args.get("use_litellm_proxy") and not model_id.startswith("litellm_proxy/"):
            request["model"] = f"litellm_proxy/{model_id}"
        return {"timeout": self._timeout_s, "max_retries": 0, **self.client_args, **request}


async def _load(stack: AsyncExitStack) -> Any:
    """LiteLLM, imported in a worker thread, since that takes seconds."""
    return await anyio.to_thread.run_sync(import_module, "litellm")


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


def _connection_errors() -> tuple[type[Exception], ...]:
    return connection_errors(import_module("httpx"))


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
