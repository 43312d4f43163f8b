"""Models on Google's Gemini API, and on Vertex AI, through the official SDK."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack, cast

from repertory.backends.http_answers import bound_answers
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.gemini_answer import ContentReader
from repertory.backends.models.gemini_request import GEMINI_RULES as GEMINI_RULES
from repertory.backends.models.gemini_request import SERVICE, content_request, contents
from repertory.backends.models.provider import NONSENSE, CountingConfig, ModelCall, retry_after_s, seconds_in
from repertory.backends.models.sdk import (
    ClientSettings,
    ModelService,
    OpenedClient,
    SDKModel,
    as_plain,
    connection_errors,
    from_other_error,
    http_arguments,
    refusal_error,
    released,
)
from repertory.backends.models.settings import check_settings
from repertory.core.answer import count_field, is_mapping, mapping_field
from repertory.core.tokens import estimate_tokens

if TYPE_CHECKING:
    from repertory.errors import RepertoryError

GEMINI = ModelService(
    name=SERVICE,
    model="GeminiModel",
    package="google.genai",
    extra="gemini",
    key_variable="GEMINI_API_KEY",
    url_variable="GOOGLE_GEMINI_BASE_URL",
    keyless=False,
)


class GeminiConfig(CountingConfig, total=False):
    """Settings of a `GeminiModel`."""

    params: Mapping[str, Any] | None
    """Fields of the SDK's `GenerateContentConfig`, such as `temperature`, `max_output_tokens` or `thinking_config`."""
    gemini_tools: Sequence[Any] | None
    """Tools that the service runs itself, such as `google.genai.types.Tool(google_search=...)`."""


class GeminiModel(SDKModel):
    """A Gemini model. Building one connects to nothing.

    The key comes from `client_args`, else from `GEMINI_API_KEY` or `GOOGLE_API_KEY`. Many agents may use one model at
    once, from several event loops; each loop has its own connections, released by `aclose` in that loop. It works on
    trio with a key; credentials of Vertex AI, which the SDK fetches itself, need asyncio.

    Cancellation: closing the stream early releases its connection.

    Args:
        model: The model's id; None for the default, or for `model_id=` in `config`.
        client: A client that you have made; Repertory does not close it.
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        GeminiConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off, or the model made a call that cannot be read. Call again.
        ModelRefused: If a filter of the service blocks the prompt. Change the prompt.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    GeminiConfig = GeminiConfig
    _known = GeminiConfig
    _service = GEMINI.name
    _sdk = GEMINI
    _asks_late = True

    def __init__(
        self,
        model: str | None = None,
        /,
        *,
        client: Any = None,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[GeminiConfig],
    ) -> None:
        """`GeminiConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `google.genai.Client` and override the timeouts here. `client` is your own such
        client: it is used as it is and never closed.

        Raises:
            ValueError: For both, and for functions among `gemini_tools`. Correct the argument.
        """
        if client is not None and client_args:
            msg = "client and client_args exclude each other"
            raise ValueError(msg)
        super().__init__(model, config, ClientSettings(client, client_args, connect_timeout_s, read_timeout_s))

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. `TypeError` names the settings that do not exist."""
        check_settings(type(self).__name__, self._known, settings)
        for made in settings.get("gemini_tools") or ():
            if getattr(made, "function_declarations", None):
                msg = "gemini_tools are tools that the service runs itself; give functions to Agent(tools=...)"
                raise ValueError(msg)
        super().update_config(**settings)

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return GEMINI_RULES

    @staticmethod
    def _open(service: ModelService, settings: ClientSettings) -> OpenedClient:
        return _open(settings)

    def _request(self, call: ModelCall) -> ModelCall:
        return call  # Whether Vertex AI is asked, which takes another request, the client knows.

    def _reader(self, call: ModelCall) -> ContentReader:
        return ContentReader(f"{call.config.get('model_id')}/{len(call.messages)}")

    async def _ask(self, client: Any, request: ModelCall) -> Any:
        arguments = content_request(request, vertexai=bool(client.vertexai))
        if request.config.get("streaming") is False:
            return await client.aio.models.generate_content(**arguments)
        answer = await client.aio.models.generate_content_stream(**arguments)
        return released(answer, answer.aclose, gemini_errors())

    def _fields(self, piece: Any, *, whole: bool) -> Mapping[str, object]:
        return mapping_field(as_plain(piece), "content", "piece")

    def _errors(self) -> tuple[type[Exception], ...]:
        return gemini_errors()

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        return from_gemini_error(error, answering=answering)

    async def _count(self, client: Any, call: ModelCall) -> int:
        """The service counts the messages; the system prompt and the tools, which it does not, are estimated."""
        answer = await client.aio.models.count_tokens(model=call.config.get("model_id"), contents=contents(call))
        estimate = estimate_tokens((), call.tool_specs, call.system_text)
        return estimate + count_field(answer.total_tokens, "count_tokens", "total_tokens")


def _open(settings: ClientSettings) -> OpenedClient:
    """A client whose connections are ours: the SDK's own belong to asyncio, and close when they like."""
    arguments = settings.client_args
    if not _has_key(arguments):
        raise ValueError("no api_key")  # the SDK would leave a client behind that cannot be closed
    genai = import_module("google.genai")
    given: Any = arguments.get("http_options")
    if hasattr(given, "model_dump"):
        given = {name: getattr(given, name) for name in given.model_fields_set}
    options: dict[str, Any] = {"timeout": int(settings.read_timeout_s * 1_000), **(given or {})}
    if options.get("httpx_async_client") is not None or options.get("aiohttp_client") is not None:
        return genai.Client(**{**arguments, "http_options": options}), None
    httpx = genai_http()
    own: Mapping[str, Any] = options.get("async_client_args") or {}
    connections = httpx.AsyncClient(**{**own, **http_arguments(httpx, settings)})
    bound_answers(connections)
    options["httpx_async_client"] = connections
    return genai.Client(**{**arguments, "http_options": options}), connections.aclose


def _has_key(arguments: Mapping[str, Any]) -> bool:
    """True if there is a key, or Vertex AI needs none."""
    elsewhere = any(arguments.get(name) for name in ("vertexai", "credentials", "project", "enterprise"))
    names = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
    return elsewhere or bool(arguments.get("api_key")) or any(os.environ.get(name) for name in names)


def genai_http() -> Any:
    """The HTTP library that the installed SDK takes clients of: `httpx2` since release 3, else `httpx`."""
    version = str(import_module("google.genai").__version__)
    newest = int(version.partition(".")[0]) >= 3 and find_spec("httpx2") is not None
    return import_module("httpx2" if newest else "httpx")


def gemini_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_gemini_error` maps. `RuntimeError`: asyncio's, in trio."""
    errors = import_module("google.genai.errors")
    credentials = import_module("google.auth.exceptions").GoogleAuthError
    return (errors.APIError, credentials, *connection_errors(genai_http()), *NONSENSE, RuntimeError)


def from_gemini_error(error: Exception, *, answering: bool) -> RepertoryError:
    """Our error for one of `gemini_errors`. Raise it `from` the original."""
    errors: Any = import_module("google.genai.errors")
    if isinstance(error, errors.APIError):
        refused: Any = error
        codes = [refused.status] if isinstance(refused.status, str) else []
        headers: Mapping[str, str] = getattr(refused.response, "headers", None) or {}
        status = refused.code if isinstance(refused.code, int) and refused.code >= 300 else 0
        if "RESOURCE_EXHAUSTED" in codes:
            status = 429
        message = str(refused.message or refused)
        waits = [each for each in (retry_after_s(headers), wait_in_details_s(refused.details)) if each is not None]
        return refusal_error(GEMINI, status, message, *codes, wait_s=max(waits, default=None))
    text = str(error)
    if "api_key" in text or "API key" in text:
        return from_other_error(GEMINI, ValueError("no api_key"), genai_http(), answering=False)
    return from_other_error(GEMINI, error, genai_http(), answering=answering)


def wait_in_details_s(body: object) -> float | None:
    """Seconds to wait, as the body of an error says them; None when it does not.

    Source: `google.rpc.RetryInfo`, whose `retryDelay` is a duration such as `48s` or `3.5s`.
    """
    inner = body.get("error", body) if is_mapping(body) else None
    details = inner.get("details") if is_mapping(inner) else None
    for each in cast("Sequence[object]", details) if isinstance(details, list) else ():
        delay = each.get("retryDelay") if is_mapping(each) else None
        if isinstance(delay, str) and delay.endswith("s") and (seconds := seconds_in(delay[:-1])) is not None:
            return seconds
    return None
