"""Calls through an official SDK: one call, its answer read piece by piece, its errors mapped to ours.

The SDK knows the address, the key, and what a refusal is. This file reads and checks what the service sends.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio
from msgspec import Struct

from repertory.backends.http_answers import BODY_BYTES_MAX, Noting, bound_answers, unwind
from repertory.backends.loop_clients import LoopClients
from repertory.backends.models.provider import DONE, NONSENSE, ProviderModel, is_overflow, release, retry_after_s
from repertory.backends.models.settings import argument_mapping
from repertory.backends.worker_threads import run_in_thread
from repertory.core.answer import count_field, is_mapping, mapping_field
from repertory.core.refusals import refuses_medium
from repertory.errors import (
    ContextWindowOverflowException,
    Invalid,
    ModelFailed,
    ModelRefused,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


ApiCall = Callable[[], Awaitable[Any]]


class SDKModel(ProviderModel):
    """A model that is asked through a package of its service. Unless a class says otherwise, this is an SDK built like
    Anthropic's and OpenAI's.
    """

    _sdk: ClassVar[ModelService]

    def __init__(self, model_id: str | None, config: Mapping[str, Any], settings: ClientSettings) -> None:
        self._settings = settings
        super().__init__(model_id, config, service_clients(self._sdk, settings, self._open))

    @staticmethod
    def _open(service: ModelService, settings: ClientSettings) -> OpenedClient:
        """A client with everything loaded that its first call needs. Runs in a worker thread."""
        return open_sdk_client(service, settings)

    async def _ask(self, client: Any, request: Any) -> Any:
        answer = await attrgetter(f"{self._sdk.resource}.{self._sdk.method}")(client)(**request)
        return _pieces(self._sdk, answer) if request.get("stream") else answer

    def _fields(self, piece: Any, *, whole: bool) -> Mapping[str, object]:
        kind, name = ("answer", "answer") if whole else ("stream", "piece")
        fields = mapping_field(as_it_came(piece), kind, name)
        if is_error(fields):
            raise stream_error(self._sdk, fields)
        return fields

    def _errors(self) -> tuple[type[Exception], ...]:
        return sdk_errors(self._sdk)

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        return from_sdk_error(self._sdk, error, answering=answering)


def count_in(answer: object, call: str, name: str) -> int:
    """The tokens in the answer to a request to count. Errors: `ModelFailed`."""
    return count_field(mapping_field(as_plain(answer), call, "answer").get(name), call, name)


async def ask(service: ModelService, call: ApiCall) -> Any:
    """The SDK's answer. Its errors are mapped to ours."""
    try:
        return await call()
    except sdk_errors(service) as error:
        raise from_sdk_error(service, error, answering=False) from error


def _pieces(service: ModelService, stream: Any) -> AsyncGenerator[object, None]:
    """The SDK's own stream is read from its response; a stream wrapped by the user is read through its wrapper."""
    errors = sdk_errors(service)
    # Exactly the SDK's class: a program may have wrapped it, to count or to log, and then its wrapper has to see the
    # pieces.
    if type(stream) is import_module(service.package).AsyncStream:
        return server_sent(stream.response, errors)
    return _wrapped(stream, errors)


async def _wrapped(stream: Any, errors: tuple[type[Exception], ...]) -> AsyncGenerator[object, None]:
    async with aclosing(released(aiter(stream), stream.close, errors)) as pieces:
        async for piece in pieces:
            yield piece


async def released(
    pieces: AsyncIterator[object], close: Callable[[], Awaitable[object]], errors: tuple[type[Exception], ...]
) -> AsyncGenerator[object, None]:
    """The pieces of an answer. Closing the generator, also half way, releases the connection, and so does an error."""
    begun: list[AsyncGenerator[object]] = []
    try:
        while (piece := await Noting(_next(pieces), begun)) is not _END:
            yield piece
    finally:
        for each in begun:
            await unwind(each, *errors)
        await release(pieces, close, errors)


_END = object()


async def _next(pieces: AsyncIterator[object]) -> object:
    return await anext(pieces, _END)


def as_plain(answer: object) -> object:
    """The service's answer as Python values, with fields that the SDK does not know."""
    dump = getattr(answer, "model_dump", None)
    return answer if dump is None else cast("object", dump(exclude_unset=True, warnings=False))


def as_it_came(answer: object) -> object:
    """The service's answer as it came: JSON values by the service's names, so that they can be stored and sent back."""
    dump = getattr(answer, "model_dump", None)
    if dump is None:
        return answer
    return cast("object", dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))


# Maps errors of a service behind an official SDK to ours.
#
#   slow down        status 429, rate limits                                              Throttled
#   try again        5xx, 529, 408, 409, no connection, no answer in time                 Unavailable
#   broke off        the connection ended in the middle of an answer                      ModelStreamBroken
#   shorten          the messages do not fit the window, or the request is too large      ContextWindowOverflowException
#   change it        a filter of the provider refused the prompt                          ModelRefused
#   give up          refused, not allowed, no key, no such model, no money, nonsense      ModelFailed
#
# Source: the errors of the Messages API and of the OpenAI API, and what compatible servers make of them.

_UNPAID = frozenset(("insufficient_quota", "billing_error", "billing_hard_limit_reached"))
_THROTTLED = frozenset(("rate_limit_error", "rate_limit_exceeded", "rate_limited", "too_many_requests"))
_UNAVAILABLE = frozenset(("api_error", "overloaded_error", "server_error", "service_unavailable", "timeout_error"))
_TRY_AGAIN = frozenset((408, 409, 425))
_FILTERED = frozenset(
    (
        "content_filter",  # Azure, with status 400 or 200
        "responsibleaipolicyviolation",
        "content_policy_violation",
        "data_inspection_failed",  # Qwen on DashScope
        "datainspectionfailed",
    )
)
_FILTERED_WORDS = (
    "content exists risk",
    "violates usage guidelines",
    "flagged as potentially violating",
    "input was flagged",
    "requires moderation",
)
"""Words of DeepSeek, xAI, OpenAI and OpenRouter when their filter refuses a prompt."""


def refusal_error(
    service: ModelService, status: int, message: str, *codes: str, wait_s: float | None = None
) -> RepertoryError:
    """The error for a refusal. `status` is 0 when it came inside a stream; `codes` are the service's own."""
    names = {code.lower() for code in codes}
    fields: dict[str, object] = {**({"status": status} if status else {}), **({"code": codes[0]} if codes else {})}
    # Before everything else: services say it with 400, 413, 422 and 500, and the way out is always a shorter
    # conversation.
    if status == 413 or is_overflow(message, *codes):
        return ContextWindowOverflowException(message, **fields)
    if names & _FILTERED or any(words in message.lower() for words in _FILTERED_WORDS):
        return ModelRefused(
            f"{service.name} refused the prompt: its filter found something ({message})", **fields, refused_prompt=True
        )
    if names & _UNPAID or status == 402:
        return ModelFailed(f"{service.name} asks for payment: check the account's plan ({message})", **fields)
    if status == 429 or names & _THROTTLED:
        return Throttled(f"{service.name} asks for fewer requests: {message}", retry_after_s=wait_s, **fields)
    # Some services answer 500 for an image that they cannot read. Trying again would never help.
    if status >= 500 and refuses_medium(message):
        return ModelFailed(f"{service.name} refused the request: {message}", **fields)
    # Codes count only without a status, which is inside a stream: otherwise the status decides.
    if status >= 500 or status in _TRY_AGAIN or (not status and names & _UNAVAILABLE):
        return Unavailable(f"{service.name} is not available: {message}", **fields)
    hint = None if refuses_medium(message) else _hint(service, status)
    return ModelFailed(f"{hint} ({message})" if hint else f"{service.name} refused the request: {message}", **fields)


def _hint(service: ModelService, status: int) -> str | None:
    match status:
        case 301 | 302 | 303 | 307 | 308:
            return f"{service.name} redirects, which is not followed: name the address where it is now"
        case 401:
            return f"{service.name} does not know this key: {_key_advice(service)}"
        case 403:
            return f"the key may not do this at {service.name}: check model_id, and what the key allows"
        case 404:
            return f"{service.name} has no such model, or the URL is wrong: check model_id and {service.url_variable}"
        case _:
            return None


def _key_advice(service: ModelService) -> str:
    return f"set {service.key_variable}, or pass client_args={{'api_key': ...}}"


def sdk_errors(service: ModelService) -> tuple[type[Exception], ...]:
    """The classes that `from_sdk_error` maps. The SDK must be installed, and this call loads it."""
    root = getattr(import_module(service.package), service.root_error)
    return (root, *connection_errors(http_library(service)), *NONSENSE)


def connection_errors(*libraries: Any) -> tuple[type[Exception], ...]:
    """The errors of these HTTP libraries when a connection fails."""
    theirs = (each for library in libraries for each in (library.HTTPError, library.StreamError, library.InvalidURL))
    return (*theirs, anyio.EndOfStream, OSError)


def from_sdk_error(service: ModelService, error: Exception, *, answering: bool) -> RepertoryError:
    """Our error for one of `sdk_errors`. Raise it `from` the original.

    `answering`: an answer had started, so a lost connection means a broken answer.
    """
    sdk: Any = import_module(service.package)
    match error:
        case sdk.APIStatusError():
            return _from_status(service, error)
        case sdk.APIConnectionError():
            return from_connection(service, error, answering=answering)
        case sdk.APIError():
            return refusal_error(service, 0, *_message_and_codes(error.body, str(error)))
        case _:
            return from_other_error(service, error, http_library(service), answering=answering)


def from_other_error(service: ModelService, error: Exception, *libraries: Any, answering: bool) -> RepertoryError:
    """Our error for one that is no class of the SDK: of its HTTP library, or of Python."""
    if isinstance(error, connection_errors(*libraries)):
        return from_connection(service, error, answering=answering)
    if "api_key" in str(error):
        return ModelFailed(f"no key for {service.name} was found: {_key_advice(service)}")
    return ModelFailed(
        f"the model's answer cannot be read: {error}" if answering else f"the model call failed: {error}"
    )


def is_error(piece: Mapping[str, object]) -> bool:
    """True if a piece of an answer is an error instead."""
    return bool(piece.get("error")) or "error" in (piece.get("type"), piece.get("object"))


def stream_error(service: ModelService, piece: Mapping[str, object]) -> RepertoryError:
    """Our error for one that came in the place of an answer, or of a piece of it."""
    otherwise = f"{service.name} ended the answer with an error"
    return refusal_error(service, _status_in(piece), *_message_and_codes(piece, otherwise))


def _status_in(piece: Mapping[str, object]) -> int:
    """The status that an error within an answer has as its code, as gateways send it; 0 without one."""
    inner = piece.get("error", piece)
    for key in ("code", "status") if is_mapping(inner) else ():
        value = cast("Mapping[str, object]", inner).get(key)
        status = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return 0


def _from_status(service: ModelService, error: Any) -> RepertoryError:
    # A stream that began with 200 and then failed has that status in its error, which says nothing.
    status = error.status_code if error.status_code >= 300 else 0
    message, *codes = _message_and_codes(error.body, str(error))
    return refusal_error(service, status, message, *codes, wait_s=retry_after_s(error.response.headers))


_UNSENDABLE = frozenset(("UnsupportedProtocol", "LocalProtocolError", "InvalidURL"))


def from_connection(service: ModelService, error: Exception, *, answering: bool) -> RepertoryError:
    """Our error when the connection failed."""
    reason = error.__cause__ if isinstance(error.__cause__, Exception) else error
    text = f"{type(reason).__name__}: {reason}"
    if type(reason).__name__ in _UNSENDABLE:
        return ModelFailed(f"the request cannot be sent: check base_url and api_key ({text})")
    if type(reason).__name__ == "DecodingError":
        return ModelFailed(f"{service.name}'s answer is not read: {reason}")
    if answering:
        return ModelStreamBroken(f"the connection ended within an answer: {text}")
    url = _url_of(error)
    if url is None:
        return Unavailable(f"{service.name} cannot be reached: {text}")
    host = f"{url.scheme}://{url.host}" + ("" if url.port is None else f":{url.port}")  # No user and password of it.
    hint = f"check that a server runs there, client_args={{'base_url': ...}} and {service.url_variable}"
    return Unavailable(f"{service.name} cannot be reached at {host}: {hint} ({text})", url=f"{host}{url.path}")


def _url_of(error: Exception) -> Any:
    try:
        return getattr(getattr(error, "request", None), "url", None)
    except RuntimeError:  # httpx, for an error that knows no request
        return None


def _message_and_codes(body: object, otherwise: str) -> list[str]:
    """The message of an error's body, and its codes. Servers use many formats; the status decides the rest."""
    inner = body.get("error", body) if is_mapping(body) else body
    if isinstance(inner, str) and inner:
        return [inner]
    if not is_mapping(inner):
        return [otherwise]
    message = inner.get("message") or inner.get("detail")
    deeper = inner.get("innererror")
    holders = (inner, deeper) if is_mapping(deeper) else (inner,)
    codes = [code for held in holders for key in ("code", "type") if isinstance(code := held.get(key), str) and code]
    return [message if isinstance(message, str) else otherwise, *codes]


# Server-sent events over httpx: the JSON of an answer, piece by piece.
#
# The SDKs have a reader of their own, made of generators that do not close each other: trio complains of them after
# every error and every answer that ends in `[DONE]`. Here one generator holds the connection, so closing it releases
# it.
#
# Source: the HTML standard, server-sent events; `[DONE]` is OpenAI's.

_DONE = "[DONE]"
_LAST_BYTES_S = 0.1
"""Seconds that a server may take to end its response, so that the connection can be reused."""


async def server_sent(response: Any, errors: tuple[type[Exception], ...]) -> AsyncGenerator[object, None]:
    """The data of an httpx response's events, in order, up to `[DONE]`, which is `DONE`, or its end.

    Errors: httpx's, and `ValueError` for data that is not JSON in UTF-8. `errors` are those that an unread rest may
    raise.
    """
    chunks: AsyncIterator[bytes] = response.aiter_bytes()
    decoder = EventDecoder()
    try:
        async for chunk in chunks:
            for data in decoder.feed(chunk):
                if data == _DONE:
                    # Read to its end, the connection goes back to the pool. A server that keeps it open costs a tenth
                    # of a second, once.
                    with anyio.move_on_after(_LAST_BYTES_S), suppress(*errors):
                        async for _ in chunks:
                            pass
                    yield DONE
                    return
                yield json.loads(data)
    finally:
        await release(chunks, response.aclose, errors)


_LINE_BYTES = 64
"""The memory that a line takes besides its bytes."""


class EventDecoder:
    """Cuts bytes into the data of events. Lines end in LF or CRLF; fields other than `data` are skipped."""

    __slots__ = ("_data", "_lines", "_size")

    def __init__(self) -> None:
        self._lines = LineCutter()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of the events that this chunk completes. `ValueError` when it is not UTF-8, and for a long line or
        event.
        """
        for line in self._lines.feed(chunk):
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
                self._size += len(text) + _LINE_BYTES
                if self._size > BODY_BYTES_MAX:
                    msg = f"an event is longer than {BODY_BYTES_MAX:,} bytes"
                    raise ValueError(msg)
            elif not text and self._data:
                data, self._data, self._size = b"\n".join(self._data), [], 0
                yield data.decode()


class LineCutter:
    """Cuts bytes that come in pieces into lines, in time that is linear in their size."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = bytearray()
        """The line that has not ended yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends. `ValueError` for one beyond `BODY_BYTES_MAX`."""
        ended, end, rest = chunk.rpartition(b"\n")
        self.rest += ended if end else rest
        if len(self.rest) > BODY_BYTES_MAX:
            msg = f"a line is longer than {BODY_BYTES_MAX:,} bytes"
            raise ValueError(msg)
        if not end:
            return []
        lines, self.rest = bytes(self.rest).split(b"\n"), bytearray(rest)
        return lines


_SDK_ARGUMENTS = frozenset(("extra_headers", "extra_query", "extra_body", "timeout"))


def with_params(arguments: Mapping[str, Any], params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments with the user's fields, which override ours. A field that is None is removed.

    Fields that we do not send ourselves go into the body, so the SDK need not know them.
    """
    merged, body = dict(arguments), dict((params or {}).get("extra_body") or {})
    for key, value in (params or {}).items():
        if key in arguments or key in _SDK_ARGUMENTS:
            merged[key] = value
        elif value is not None:
            body[key] = value
    if body:
        merged["extra_body"] = body
    return {key: value for key, value in merged.items() if value is not None}


# Clients of the two official SDKs, Anthropic's and OpenAI's, which are built alike.
#
# Both speak HTTP through httpx2, and their releases before 3 (OpenAI's) and 1 (Anthropic's) through httpx, which is the
# same by another name. It finds out at its first connection whether it runs on asyncio or on trio. Making a client
# imports the SDK, reads certificates and looks for credentials in the environment and in files, so it happens in a
# worker thread.


_CREDENTIALS = frozenset(("api_key", "admin_api_key", "workload_identity", "provider"))


class ModelService(Struct, frozen=True, kw_only=True):
    """The differences between services, and between the SDKs that are built alike."""

    name: str
    model: str
    package: str
    """The SDK."""
    extra: str = ""
    """The extra that installs it, when that has another name."""
    client: str = ""
    """The SDK's asynchronous client."""
    root_error: str = ""
    """The base class of the SDK's errors."""
    resource: str = ""
    """The client attribute with the calls of a model."""
    method: str = "create"
    """The one of these calls that asks for an answer."""
    key_variable: str
    url_variable: str
    base_url: str | None = None
    """The URL of the service, if it is another one than the SDK's own."""
    keyless: bool
    """True if a server given by its URL is called without a key, too."""


class ClientSettings:
    """The client of a service. Missing arguments come from the environment, as the service's package documents.

    Errors: `Invalid` for a client that is a name or a dictionary, such as one meant for `client_args`.
    """

    def __init__(
        self,
        client: Any = None,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
    ) -> None:
        """`client_args` override ours. `client` is used as it is, in every loop, and never closed. `read_timeout_s`:
        between two pieces of an answer.
        """
        self.client_args = argument_mapping("client_args", client_args)
        if isinstance(client, str | Mapping):
            raise Invalid("client is an object of the service's package; arguments for one are client_args={...}")
        self.client = client
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s


OpenedClient = tuple[Any, Callable[[], Awaitable[object]] | None]
"""A client, and the function that closes its connections; None if they are not ours."""


def service_clients(
    service: ModelService, settings: ClientSettings, open_client: Callable[[ModelService, ClientSettings], OpenedClient]
) -> LoopClients:
    """The clients of one model. `ImportError` names the extra to install when the package is missing."""
    need(service)

    async def connect(stack: AsyncExitStack) -> Any:
        if settings.client is not None:
            return settings.client
        client, close = await run_in_thread(lambda: open_client(service, settings))
        if close is not None:
            stack.push_async_callback(close)
        return client

    return LoopClients(connect)


def http_arguments(httpx: Any, settings: ClientSettings) -> dict[str, Any]:
    """The arguments of a client of `httpx` or `httpx2`, with everything loaded that its first request needs.

    A redirect would take the prompt elsewhere, and each key that is not in the header `Authorization`.
    """
    import_module(httpx.__name__.replace("httpx", "httpcore"))  # It would import it at a request, on the loop.
    # No limit for a free connection: many agents share a client, and waiting for another one's answer is no failure.
    timeout = httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None)
    return {"timeout": timeout, "verify": certificates(httpx.__name__), "follow_redirects": False}


def need(service: ModelService) -> None:
    """Require the SDK. Errors: `ImportError`, naming the extra to install, when it is missing."""
    root, _, _ = service.package.partition(".")
    if find_spec(root) is None or find_spec(service.package) is None:
        msg = f"{service.model} needs {service.package}: pip install 'repertory[{service.extra or service.package}]'"
        raise ImportError(msg)


def open_sdk_client(service: ModelService, settings: ClientSettings) -> OpenedClient:
    """A client of an SDK built like Anthropic's and OpenAI's."""
    sdk, connection = import_module(service.package), http_arguments(http_library(service), settings)
    # The agent retries, visibly.
    arguments = {"timeout": connection["timeout"], "max_retries": 0, **settings.client_args}
    own = "http_client" in arguments
    if not own:
        # The SDK's own client has a finalizer that starts a task in any loop that runs by then.
        arguments["http_client"] = sdk.DefaultAsyncHttpxClient(**{**connection, "timeout": arguments["timeout"]})
        bound_answers(arguments["http_client"])
    if service.base_url is not None:
        arguments = _elsewhere(service, service.base_url, arguments)
    elif service.keyless and _needs_no_key(service, arguments):
        arguments["api_key"] = "none"
    client = getattr(sdk, service.client)(**arguments)
    # The SDKs import the classes of a resource when it is first looked at; here that happens in the worker thread.
    attrgetter(service.resource)(client)
    return client, None if own else client.close


def http_library(service: ModelService) -> Any:
    """The HTTP library of the installed SDK, which this call loads: `httpx2`, or `httpx` in older releases."""
    lineage = import_module(service.package).DefaultAsyncHttpxClient.__mro__
    return import_module(
        next(name for base in lineage if (name := base.__module__.partition(".")[0]).startswith("httpx"))
    )


def _elsewhere(service: ModelService, base_url: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for another service than the SDK's own, which must not get the key that the SDK would find."""
    key = os.environ.get(service.key_variable) or ("none" if service.keyless else None)
    found = {"base_url": os.environ.get(service.url_variable) or base_url, "api_key": key, **arguments}
    if found["api_key"] is None:
        msg = "no api_key"
        raise ValueError(msg)
    return found


@functools.cache
def certificates(library: str) -> Any:
    """The trusted certificates, read once per process: reading them takes longer than everything else here."""
    return import_module(library).create_ssl_context()


def _needs_no_key(service: ModelService, arguments: Mapping[str, Any]) -> bool:
    """True if a URL and no key is given: a local server has none."""
    elsewhere = arguments.get("base_url") or os.environ.get(service.url_variable)
    return bool(elsewhere) and not os.environ.get(service.key_variable) and not _CREDENTIALS & arguments.keys()
