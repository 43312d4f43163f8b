"""Models on services with OpenAI's protocol that have a class of their own: Mistral, Llama API, llama.cpp, Writer.

Each is `OpenAIModel` at another address, with its settings as fields of the request. The first three are asked through
OpenAI's SDK; Writer has an SDK of the same make, and another path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack, cast

import msgspec

from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.chat_services import LLAMA_CPP_SERVER, MISTRAL_CHAT, ChatService
from repertory.backends.models.openai import OPENAI, ChatModel, completion_arguments
from repertory.backends.models.provider import CountingConfig, ModelCall, StreamingConfig
from repertory.backends.models.sdk import ClientSettings, ModelService, with_params
from repertory.backends.models.settings import argument_mapping, check_settings
from repertory.core.answer import mapping_field
from repertory.errors import Invalid, ModelFailed


class CompatibleModel(ChatModel):
    """A model behind Chat Completions whose service has settings of its own."""

    _fields_sent: ClassVar[tuple[str, ...]] = ()
    """The settings that are fields of the request by the same name."""

    def _request(self, call: ModelCall) -> dict[str, Any]:
        config: Mapping[str, Any] = call.config
        if not config.get("model_id"):
            raise Invalid(f"{type(self).__name__} needs a model_id", service=self._service)
        return completion_arguments(
            call, self._service, given_fields(config, self._fields_sent), chat=self._chat_service
        )


def given_fields(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings of these names that are given."""
    return {name: config[name] for name in names if config.get(name) is not None}


# ------------------------------------------------------------------------------------------------------------- Mistral

MISTRAL = msgspec.structs.replace(
    OPENAI,
    name="Mistral",
    model="MistralModel",
    extra="mistral",
    key_variable="MISTRAL_API_KEY",
    url_variable="MISTRAL_BASE_URL",
    base_url="https://api.mistral.ai/v1",
    keyless=False,
)
_MISTRAL_FIELDS = ("max_tokens", "temperature", "top_p")


class MistralConfig(StreamingConfig, total=False):
    """Settings of a `MistralModel`."""

    max_tokens: int | None
    temperature: float | None
    """The sampling temperature, from 0 to 1."""
    top_p: float | None
    """The probability mass of nucleus sampling, from 0 to 1."""
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `safe_prompt`. They override ours; None removes a field."""
    stream: bool | None
    """`streaming` by another name; either can turn it off."""
    cache_config: CacheConfig | None
    """`cache_key` is sent; the service caches by itself."""


class MistralModel(CompatibleModel):
    """A model on Mistral's service, through Chat Completions. Building one connects to nothing.

    The key is `api_key`, else `MISTRAL_API_KEY`. Connections, errors and cancellation are those of `OpenAIModel`.

    Args:
        api_key: The key; None for `$MISTRAL_API_KEY`.
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        MistralConfig: The type of the settings.
    """

    MistralConfig = MistralConfig
    _known = MistralConfig
    _service = MISTRAL.name
    _sdk = MISTRAL
    _chat = MISTRAL_CHAT
    _fields_sent = _MISTRAL_FIELDS

    def __init__(
        self,
        api_key: str | None = None,
        *,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[MistralConfig],
    ) -> None:
        """`MistralConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI`; `server_url` and `timeout_ms`, as Mistral's own SDK has
        them, are accepted too.

        Raises:
            ValueError: For a temperature or `top_p` outside of 0 to 1. Correct the argument.
        """
        arguments = argument_mapping("client_args", client_args)
        if api_key:
            arguments["api_key"] = api_key
        if server := arguments.pop("server_url", None):
            arguments["base_url"] = f"{str(server).rstrip('/').removesuffix('/v1')}/v1"
        if (timeout_ms := arguments.pop("timeout_ms", None)) is not None:
            arguments["timeout"] = timeout_ms / 1000
        super().__init__(None, config, ClientSettings(None, arguments, connect_timeout_s, read_timeout_s))

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. `TypeError` names the settings that do not exist."""
        check_settings(type(self).__name__, self._known, settings)
        for name in ("temperature", "top_p"):
            value = settings.get(name)
            if value is not None and not 0 <= value <= 1:
                msg = f"{name} must be between 0.0 and 1.0, got {value}"
                raise ValueError(msg)
        super().update_config(**settings)

    def _request(self, call: ModelCall) -> dict[str, Any]:
        return mistral_arguments(call)


def mistral_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` without a model id, or for a block that the service cannot take."""
    config: Mapping[str, Any] = call.config
    if not config.get("model_id"):
        raise Invalid("MistralModel needs a model_id", service=MISTRAL.name)
    arguments = completion_arguments(call, MISTRAL.name, given_fields(config, _MISTRAL_FIELDS), chat=MISTRAL_CHAT)
    params: Mapping[str, Any] = config.get("params") or {}
    if "stream_options" not in params:  # which the service refuses; it sends the usage unasked
        arguments.pop("stream_options", None)
    return arguments


# ----------------------------------------------------------------------------------------------------------- Llama API

LLAMA_API = msgspec.structs.replace(
    OPENAI,
    name="Llama API",
    model="LlamaAPIModel",
    extra="llamaapi",
    key_variable="LLAMA_API_KEY",
    url_variable="LLAMA_API_CLIENT_BASE_URL",
    base_url="https://api.llama.com/compat/v1",
    keyless=False,
)


class LlamaAPIConfig(StreamingConfig, total=False):
    """Settings of a `LlamaAPIModel`."""

    repetition_penalty: float | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_completion_tokens: int | None
    params: Mapping[str, Any] | None
    """Further fields of the request. They override ours; None removes a field."""


class LlamaAPIModel(CompatibleModel):
    """A model on Meta's Llama API, through its endpoint for Chat Completions. Building one connects to nothing.

    The key comes from `client_args`, else from `LLAMA_API_KEY`. Connections, errors and cancellation are those of
    `OpenAIModel`. Meta has announced the end of this service.

    Args:
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        LlamaConfig: The type of the settings.
    """

    LlamaConfig = LlamaAPIConfig
    _known = LlamaAPIConfig
    _service = LLAMA_API.name
    _sdk = LLAMA_API
    _chat = ChatService(name="llama-api")
    _fields_sent = ("repetition_penalty", "temperature", "top_p", "top_k", "max_completion_tokens")

    def __init__(
        self,
        *,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[LlamaAPIConfig],
    ) -> None:
        """`LlamaAPIConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI`; a `base_url` is one of an endpoint with OpenAI's protocol.
        """
        super().__init__(None, config, ClientSettings(None, client_args, connect_timeout_s, read_timeout_s))


# ----------------------------------------------------------------------------------------------------------- llama.cpp

LLAMA_CPP = msgspec.structs.replace(
    OPENAI,
    name="llama.cpp",
    model="LlamaCppModel",
    extra="llamacpp",
    key_variable="LLAMA_API_KEY",
    url_variable="LLAMACPP_BASE_URL",
    base_url="http://localhost:8080/v1",
    keyless=True,
)


class LlamaCppConfig(CountingConfig, total=False):
    """Settings of a `LlamaCppModel`."""

    model_id: str
    """`default` unless the server has several."""
    params: Mapping[str, Any] | None
    """Further fields of the request: `temperature`, and what is the server's own, such as `grammar`, `json_schema`,
    `mirostat`, `repeat_penalty` or `slot_id`. They override ours; None removes a field.
    """
    cache_config: CacheConfig | None
    """Asks the server to keep the prompt (`cache_prompt`); it has no other settings of a cache."""
    context_window_limit: int | None
    """The window that the server was started with, in tokens."""


class LlamaCppModel(CompatibleModel):
    """A model on a llama.cpp server. Building one connects to nothing, and needs no key.

    Connections, errors and cancellation are those of `OpenAIModel`. Images and sound are sent, for models that take
    them.

    Args:
        timeout: Seconds for connecting and reading, as one number or as two; in place of `connect_timeout_s` and
            `read_timeout_s`.
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        LlamaCppConfig: The type of the settings.
    """

    LlamaCppConfig = LlamaCppConfig
    _known = LlamaCppConfig
    _service = LLAMA_CPP.name
    _sdk = LLAMA_CPP
    _chat = LLAMA_CPP_SERVER
    _defaults = LlamaCppConfig(model_id="default")

    def __init__(
        self,
        base_url: str = "http://localhost:8080",
        timeout: float | tuple[float, ...] | None = None,
        *,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[LlamaCppConfig],
    ) -> None:
        """`LlamaCppConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `base_url` is the server's, without `/v1`. `timeout`, in seconds, replaces the two others: one number, or the
        one for connecting and the one for reading. `client_args` are arguments of `openai.AsyncOpenAI`.
        """
        self._root = base_url.rstrip("/").removesuffix("/v1")
        if timeout is not None:
            limits = timeout if isinstance(timeout, tuple) else (timeout, timeout)
            connect_timeout_s, read_timeout_s = limits[0], limits[min(1, len(limits) - 1)]
        arguments = {"base_url": f"{self._root}/v1", **argument_mapping("client_args", client_args)}
        super().__init__(None, config, ClientSettings(None, arguments, connect_timeout_s, read_timeout_s))

    @property
    def base_url(self) -> str:
        """The server's address, without `/v1`."""
        return self._root

    def _request(self, call: ModelCall) -> dict[str, Any]:
        arguments = super()._request(_without_cache(call))
        if call.config.get("cache_config") is None:
            return arguments
        return with_params(arguments, {"extra_body": {"cache_prompt": True, **arguments.pop("extra_body", {})}})

    async def _count(self, client: Any, call: ModelCall) -> int:
        arguments = completion_arguments(call, self._service, chat=self._chat_service)
        body = {name: arguments[name] for name in ("messages", "tools") if name in arguments}
        counted = await client.post(f"{self._root}/tokenize", body=body, cast_to=object)
        answer = mapping_field(counted, "tokenize", "answer")
        tokens = answer.get("tokens")
        if not isinstance(tokens, list):
            raise ModelFailed("llama.cpp counted no tokens: the server is too old", answer=sorted(answer))
        return len(cast("list[object]", tokens))


def _without_cache(call: ModelCall) -> ModelCall:
    return msgspec.structs.replace(call, config={**call.config, "cache_config": None})


# -------------------------------------------------------------------------------------------------------------- Writer

WRITER = ModelService(
    name="Writer",
    model="WriterModel",
    package="writerai",
    extra="writer",
    client="AsyncWriter",
    root_error="WriterError",
    resource="chat",
    method="chat",
    key_variable="WRITER_API_KEY",
    url_variable="WRITER_BASE_URL",
    keyless=False,
)


class WriterConfig(StreamingConfig, total=False):
    """Settings of a `WriterModel`."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: str | list[str] | None
    stream_options: Mapping[str, Any] | None
    """The request's options for streams; by default, the usage is asked for."""
    params: Mapping[str, Any] | None
    """Further fields of the request. They override ours; None removes a field."""
    cache_config: CacheConfig | None
    """A setting without effect: the service caches by itself."""


class WriterModel(CompatibleModel):
    """A model on Writer's service, through its official SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `WRITER_API_KEY`. Connections, errors and cancellation are those of
    `OpenAIModel`.

    Args:
        client_args: Arguments for the client of the service's own package.
        client: A client that you have made; Repertory does not close it.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        WriterConfig: The type of the settings.
    """

    WriterConfig = WriterConfig
    _known = WriterConfig
    _service = WRITER.name
    _sdk = WRITER
    _chat = ChatService(name="writer")
    _fields_sent = ("max_tokens", "temperature", "top_p", "stop", "stream_options")

    def __init__(
        self,
        client_args: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[WriterConfig],
    ) -> None:
        """`WriterConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `writerai.AsyncWriter`. `client` is your own such client, which is never closed.
        """
        super().__init__(None, config, ClientSettings(client, client_args, connect_timeout_s, read_timeout_s))

    def _request(self, call: ModelCall) -> dict[str, Any]:
        return super()._request(_without_cache(call))
