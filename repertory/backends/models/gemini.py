"""Models on Google's Gemini API, and on Vertex AI, through the official SDK."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio.to_thread

from repertory.backends.loop_clients import LoopClients
from repertory.backends.models.content import BLANK_TEXT, block_kind, bytes_in, cannot_take, input_of, text_in
from repertory.backends.models.provider import (
    NONSENSE,
    BaseModelConfig,
    ModelCall,
    ProviderModel,
    metadata_event,
    retry_after_s,
)
from repertory.backends.models.sdk import (
    ModelService,
    as_plain,
    certificates,
    connection_errors,
    from_other_error,
    need,
    refusal_error,
    released,
)
from repertory.core.answer import count_field, filled, is_mapping, mapping_field
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid, ModelStreamBroken, RepertoryError

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStartToolUse, StreamEvent
    from repertory.core.messages import Message

GEMINI = ModelService(
    name="Gemini",
    model="GeminiModel",
    package="google.genai",
    extra="gemini",
    key_variable="GEMINI_API_KEY",
    url_variable="GOOGLE_GEMINI_BASE_URL",
    keyless=False,
)


class GeminiConfig(BaseModelConfig, total=False):
    """Settings of a `GeminiModel`."""

    model_id: str
    params: Mapping[str, Any] | None
    """Fields of the SDK's `GenerateContentConfig`, such as `temperature`, `max_output_tokens` or `thinking_config`."""
    gemini_tools: Sequence[Any] | None
    """Tools that the service runs itself, such as `google.genai.types.Tool(google_search=...)`."""
    streaming: bool | None
    """True to stream the answer (the default), False to get it whole."""
    use_native_token_count: bool | None
    """True if `count_tokens` asks the service. False by default, since it is one more network call."""


class GeminiModel(ProviderModel):
    """A Gemini model. Building one connects to nothing.

    The key comes from `client_args`, else from `GEMINI_API_KEY` or `GOOGLE_API_KEY`. Many agents may use one model at
    once, from several event loops; each loop has its own connections, released by `aclose` in that loop. It works on
    trio with a key; credentials of Vertex AI, which the SDK fetches itself, need asyncio.

    Cancellation: closing the stream early releases its connection.

    Args:
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
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    GeminiConfig = GeminiConfig
    _known = GeminiConfig
    _service = GEMINI.name

    def __init__(
        self,
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
        need(GEMINI)
        arguments, limits = dict(client_args or {}), (connect_timeout_s, read_timeout_s)

        async def connect(stack: AsyncExitStack) -> Any:
            return client if client is not None else await _connect(stack, arguments, limits)

        super().__init__({}, config, LoopClients(connect))

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. `TypeError` names the settings that do not exist."""
        for made in settings.get("gemini_tools") or ():
            if getattr(made, "function_declarations", None):
                msg = "gemini_tools are tools that the service runs itself; give functions to Agent(tools=...)"
                raise ValueError(msg)
        super().update_config(**settings)

    async def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        streaming = call.config.get("streaming") is not False
        reader = ContentReader(f"{call.config.get('model_id')}/{len(call.messages)}")
        answering = False
        try:
            client = await self._clients.get()
            request = content_request(call, vertexai=bool(client.vertexai))
            models = client.aio.models
            if streaming:
                answer = await models.generate_content_stream(**request)
                pieces = released(answer, answer.aclose, gemini_errors())
            else:
                pieces = _one(await models.generate_content(**request))
            async with aclosing(pieces) as read:
                async for piece in read:
                    answering = True
                    for event in reader.feed(mapping_field(as_plain(piece), "content", "piece")):
                        yield event
        except RepertoryError:
            raise
        except gemini_errors() as error:
            raise from_gemini_error(error, answering=answering) from error
        for event in reader.finish():
            yield event

    def _counting(self, call: ModelCall) -> Callable[[], Awaitable[int]]:
        """The service counts the messages; the system prompt and the tools, which it does not, are estimated."""
        contents = _contents(call.messages)
        rest = estimate_tokens((), call.tool_specs, call.system_text)

        async def counted() -> int:
            try:
                models = (await self._clients.get()).aio.models
                answer = await models.count_tokens(model=call.config.get("model_id"), contents=contents)
                return rest + count_field(answer.total_tokens, "count_tokens", "total_tokens")
            except RepertoryError:
                raise
            except gemini_errors() as error:
                raise from_gemini_error(error, answering=False) from error

        return counted


async def _one(answer: object) -> AsyncGenerator[object]:
    yield answer


async def _connect(stack: AsyncExitStack, arguments: Mapping[str, Any], limits: tuple[float, float]) -> Any:
    """A client whose connections are ours: the SDK's own belong to asyncio, and close when they like."""
    client, connections = await anyio.to_thread.run_sync(_open, arguments, limits)
    if connections is not None:
        stack.push_async_callback(connections.aclose)
    return client


def _open(arguments: Mapping[str, Any], limits: tuple[float, float]) -> tuple[Any, Any]:
    """Runs in a worker thread, since it imports and reads files."""
    if not _has_key(arguments):
        raise ValueError("no api_key")  # the SDK would leave a client behind that cannot be closed
    genai = import_module("google.genai")
    given: Any = arguments.get("http_options")
    if hasattr(given, "model_dump"):
        given = {name: getattr(given, name) for name in given.model_fields_set}
    options: dict[str, Any] = {"timeout": int(limits[1] * 1_000), **(given or {})}
    if options.get("httpx_async_client") is not None or options.get("aiohttp_client") is not None:
        return genai.Client(**{**arguments, "http_options": options}), None
    httpx = genai_http()
    import_module(httpx.__name__.replace("httpx", "httpcore"))
    timeout = httpx.Timeout(limits[1], connect=limits[0], pool=None)
    connections = httpx.AsyncClient(
        timeout=timeout, verify=certificates(httpx.__name__), follow_redirects=True, **_client_args(options)
    )
    return genai.Client(**{**arguments, "http_options": {**options, "httpx_async_client": connections}}), connections


def _has_key(arguments: Mapping[str, Any]) -> bool:
    """True if there is a key, or Vertex AI needs none."""
    elsewhere = any(arguments.get(name) for name in ("vertexai", "credentials", "project", "enterprise"))
    names = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
    return elsewhere or bool(arguments.get("api_key")) or any(os.environ.get(name) for name in names)


def _client_args(options: Mapping[str, Any]) -> dict[str, Any]:
    given: Mapping[str, Any] = options.get("async_client_args") or {}
    return {name: value for name, value in given.items() if name not in ("timeout", "verify", "follow_redirects")}


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
        status = refused.code if isinstance(refused.code, int) and refused.code >= 400 else 0
        if "RESOURCE_EXHAUSTED" in codes:
            status = 429
        message = str(refused.message or refused)
        return refusal_error(GEMINI, status, message, *codes, wait_s=retry_after_s(headers))
    text = str(error)
    if "api_key" in text or "API key" in text:
        return from_other_error(GEMINI, ValueError("no api_key"), genai_http(), answering=False)
    return from_other_error(GEMINI, error, genai_http(), answering=answering)


# Builds requests to `generateContent`. Pure.
#
# Signatures of thoughts go back where they came from: on a tool use (`reasoningSignature`), or on reasoning.
#
# Source: the Gemini API.

_MEDIA = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "html": "text/html",
    "md": "text/markdown",
    "txt": "text/plain",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "three_gp": "video/3gpp",
    "wmv": "video/x-ms-wmv",
    "flv": "video/x-flv",
    "mp3": "audio/mpeg",
}


def content_request(call: ModelCall, *, vertexai: bool = False) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    config: Mapping[str, Any] = call.config
    if not config.get("model_id"):
        raise Invalid("GeminiModel needs a model_id, such as 'gemini-2.5-flash'")
    settings: dict[str, Any] = dict(config.get("params") or {})
    if system := call.system_text:
        settings.setdefault("system_instruction", system)
    functions = [_function(spec) for spec in call.tool_specs if "cachePoint" not in spec]
    own = list(config.get("gemini_tools") or ())
    if functions or own:
        settings["tools"] = [*([{"function_declarations": functions}] if functions else []), *own]
    if functions and call.tool_choice:
        settings.setdefault("tool_config", {"function_calling_config": _choice(call.tool_choice)})
    if functions and own and not vertexai:
        chosen: Any = settings.get("tool_config") or {}
        as_given: dict[str, Any] = chosen.model_dump(exclude_none=True) if hasattr(chosen, "model_dump") else chosen
        settings["tool_config"] = {"include_server_side_tool_invocations": True, **as_given}
    return {"model": config["model_id"], "contents": _contents(call.messages), "config": settings}


def _contents(messages: Sequence[Message]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    sent: list[dict[str, Any]] = []
    for message in messages:
        parts = [part for block in message["content"] for part in _parts(block, names)]
        role = "user" if message["role"] == "user" else "model"
        sent.append({"role": role, "parts": parts or [{"text": BLANK_TEXT}]})
    return sent


def _parts(block: Mapping[str, Any], names: dict[str, str]) -> list[dict[str, Any]]:
    """The block in the service's form. `names`: the tool of each use, which results must name."""
    if "toolUse" in block:
        use = block["toolUse"]
        names[use["toolUseId"]] = use["name"]
        made = {"id": use["toolUseId"], "name": use["name"], "args": input_of(use)}
        return [{"function_call": made, **_signed(use.get("reasoningSignature"))}]
    if "toolResult" in block:
        result = block["toolResult"]
        output = [_shown(part) for part in result["content"]]
        key = "error" if result.get("status") == "error" else "output"
        name = names.get(result["toolUseId"], result["toolUseId"])
        return [{"function_response": {"id": result["toolUseId"], "name": name, "response": {key: output}}}]
    if "reasoningContent" in block:
        spoken = block["reasoningContent"].get("reasoningText", {})
        if not spoken.get("text") and not spoken.get("signature"):
            return []
        return [{"text": spoken.get("text", ""), "thought": True, **_signed(spoken.get("signature"))}]
    text = text_in(block)
    if text is not None:
        return [{"text": text}] if text.strip() else []
    return _media(block)


def _shown(part: Mapping[str, Any]) -> Any:
    """A piece of a tool's result as JSON."""
    if "json" in part:
        return {"json": part["json"]}
    text = text_in(part)
    if text is not None:
        return {"text": text}
    made = _media(part)
    if not made:
        return {}
    data = made[0]["inline_data"]
    return {"inline_data": {**data, "data": base64.b64encode(data["data"]).decode()}}


def _media(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    kind = block_kind(block)
    if kind == "cachePoint":
        return []
    if kind not in ("image", "document", "video", "audio"):
        raise cannot_take(kind, GEMINI.name, "it has no such blocks", sorted(block))
    body: Mapping[str, Any] = block[kind]
    source: Mapping[str, Any] = body.get("source", {})
    if kind == "document" and "text" in source:
        return [{"text": str(source["text"])}]
    if kind == "document" and "content" in source:
        return [{"text": "\n".join(text_in(part) or "" for part in source["content"])}]
    form = str(body.get("format", ""))
    media_type = _MEDIA.get(form, "application/octet-stream" if kind == "document" else f"{kind}/{form}")
    return [{"inline_data": {"data": bytes_in(kind, body, GEMINI.name), "mime_type": media_type}}]


def _signed(signature: object) -> dict[str, bytes]:
    """The signature of a thought; another service's, which is not in base64, is left out."""
    if not isinstance(signature, str) or not signature:
        return {}
    try:
        return {"thought_signature": base64.b64decode(signature, validate=True)}
    except ValueError:
        return {}


def _function(spec: Mapping[str, Any]) -> dict[str, Any]:
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {**described, "parameters_json_schema": spec["inputSchema"]["json"]}


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" in choice:
        return {"mode": "ANY", "allowed_function_names": [choice["tool"]["name"]]}
    return {"mode": "ANY" if "any" in choice else "AUTO"}


# One answer of the service as events of ours.

_STOPS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens", "SAFETY": "guardrail_intervened"}
_FILTERS = frozenset(("RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"))


class ContentReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_blocks", "_finish", "_kind", "_names", "_seed", "_started", "_usage", "_used")

    def __init__(self, seed: str) -> None:
        """`seed`: the id of a tool use is made from it when the service gives none."""
        self._seed = seed
        self._blocks = 0
        self._kind: str | None = None
        """The kind of the open block, text or reasoning."""
        self._used = 0
        self._finish: str | None = None
        self._usage: Mapping[str, object] = {}
        self._names: tuple[object, object] = (None, None)
        self._started = False

    def feed(self, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
        if not self._started:
            self._started = True
            yield {"messageStart": {"role": "assistant"}}
        if is_mapping(usage := piece.get("usage_metadata")):
            self._usage = usage
        if piece.get("response_id"):
            self._names = piece["response_id"], piece.get("model_version") or self._names[1]
        if is_mapping(feedback := piece.get("prompt_feedback")) and feedback.get("block_reason"):
            self._finish = "PROHIBITED_CONTENT"
        for candidate in _first(piece.get("candidates")):
            content = candidate.get("content")
            for part in _each(content.get("parts")) if is_mapping(content) else ():
                yield from self._part(part)
            if reason := candidate.get("finish_reason"):
                self._finish = str(getattr(reason, "value", reason))

    def finish(self) -> Iterator[StreamEvent]:
        if self._finish is None:
            raise ModelStreamBroken("Gemini ended the stream in the middle of an answer")
        yield from self._fall_silent()
        stop = "content_filtered" if self._finish in _FILTERS else _STOPS.get(self._finish, "end_turn")
        yield {"messageStop": {"stopReason": "tool_use" if self._used and stop == "end_turn" else stop}}
        if self._usage:
            yield {"metadata": metadata_event(_counted(self._usage), *self._names)}

    def _part(self, part: Mapping[str, object]) -> Iterator[StreamEvent]:
        signature = part.get("thought_signature")
        signed = base64.b64encode(signature).decode() if isinstance(signature, bytes) else None
        if is_mapping(called := part.get("function_call")):
            yield from self._use(called, signed)
            return
        if part.get("text"):
            kind = "reasoning" if part.get("thought") else "text"
            text = filled(part["text"], "part", "text")
            yield from self._speak(kind, {"text": text} if kind == "text" else {"reasoningContent": {"text": text}})
        if signed:
            yield from self._speak("reasoning", {"reasoningContent": {"signature": signed}})

    def _speak(self, kind: str, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        if self._kind != kind:
            yield from self._fall_silent()
            self._kind = kind
            yield {"contentBlockStart": {"contentBlockIndex": self._blocks, "start": {}}}
        yield {"contentBlockDelta": {"contentBlockIndex": self._blocks, "delta": cast("ContentBlockDelta", delta)}}

    def _fall_silent(self) -> Iterator[StreamEvent]:
        if self._kind is not None:
            yield {"contentBlockStop": {"contentBlockIndex": self._blocks}}
            self._kind = None
            self._blocks += 1

    def _use(self, called: Mapping[str, object], signed: str | None) -> Iterator[StreamEvent]:
        yield from self._fall_silent()
        name = filled(called.get("name"), "function_call", "name")
        text = json.dumps(called.get("args") or {})
        made = hashlib.sha256(f"{self._seed}/{self._used}/{name}/{text}".encode()).hexdigest()[:24]
        use: ContentBlockStartToolUse = {"toolUseId": str(called.get("id") or f"call_{made}"), "name": name}
        if signed:
            use["reasoningSignature"] = signed
        self._used += 1
        index = self._blocks
        self._blocks += 1
        yield {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"contentBlockIndex": index, "delta": {"toolUse": {"input": text}}}}
        yield {"contentBlockStop": {"contentBlockIndex": index}}


def _each(listed: object) -> Iterator[Mapping[str, object]]:
    for each in cast("Sequence[object]", listed or ()):
        yield mapping_field(each, "content", "list")


def _first(listed: object) -> Sequence[Mapping[str, object]]:
    return list(_each(listed))[:1]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens; thoughts are output."""
    number = {name: value for name, value in usage.items() if isinstance(value, int)}
    cached = number.get("cached_content_token_count", 0)
    given = number.get("prompt_token_count", 0) + number.get("tool_use_prompt_token_count", 0)
    total = number.get("total_token_count", 0)
    made = number.get("candidates_token_count", -1)
    out = max(0, total - given) if made < 0 else made + number.get("thoughts_token_count", 0)
    counted = {"inputTokens": max(0, given - cached), "outputTokens": out, "totalTokens": given + out}
    return counted | ({"cacheReadInputTokens": cached} if cached else {})
