"""Models on an Ollama server, through its own chat protocol.

Its endpoint with OpenAI's protocol would ignore `options` and `keep_alive`, so it is asked in its own, through the
connections of the official client.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack, cast

from repertory.backends.http_answers import bound_answers
from repertory.backends.models.answer_reader import AnswerReader, metadata_event, token_count
from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.content import (
    BLANK_TEXT,
    base64_in,
    block_kind,
    cannot_take,
    chat_tool,
    document_in,
    input_of,
    text_in,
)
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.provider import (
    NONSENSE,
    ModelCall,
    StreamingConfig,
    fitted_call,
    release,
    retry_after_s,
)
from repertory.backends.models.sdk import (
    ClientSettings,
    LineCutter,
    ModelService,
    OpenedClient,
    SDKModel,
    connection_errors,
    from_other_error,
    http_arguments,
    refusal_error,
)
from repertory.backends.models.settings import argument_mapping
from repertory.core.answer import is_mapping, malformed, mapping_field, required_text
from repertory.errors import Invalid, ModelStreamBroken, RepertoryError
from repertory.logs import INFO, note

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockStartToolUse, StreamEvent
    from repertory.core.messages import Message

_log = logging.getLogger("repertory.models")

OLLAMA = ModelService(
    name="Ollama",
    model="OllamaModel",
    package="ollama",
    key_variable="OLLAMA_API_KEY",
    url_variable="OLLAMA_HOST",
    keyless=True,
)


class OllamaConfig(StreamingConfig, total=False):
    """Settings of an `OllamaModel`."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop_sequences: list[str] | None
    options: Mapping[str, Any] | None
    """Further options of the model, such as `num_ctx` or `top_k`; the four above override them."""
    keep_alive: float | str | None
    """The time for which the server keeps the model in memory, in seconds or such as `10m`."""
    additional_args: Mapping[str, Any] | None
    """Further fields of the request, such as `think` or `format`. They override ours."""
    cache_config: CacheConfig | None
    """A setting without effect: the server caches by itself."""
    context_window_limit: int | None
    """The window that the model is run with, in tokens."""


class OllamaModel(SDKModel):
    """A model on an Ollama server. Building one connects to nothing.

    Many agents may use one model at once, from several event loops; each loop has its own connections, released by
    `aclose` in that loop. The server cannot be told to use a tool, so `tool_choice` has no effect.

    Cancellation: closing the stream early releases its connection.

    Attributes:
        OllamaConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the server cannot take; nothing was sent. Leave it out.
    """

    OllamaConfig = OllamaConfig
    _known = OllamaConfig
    _service = OLLAMA.name
    _sdk = OLLAMA

    def __init__(
        self,
        host: str | None = None,
        *,
        ollama_client_args: Mapping[str, Any] | None = None,
        client_args: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 600.0,
        **config: Unpack[OllamaConfig],
    ) -> None:
        """`OllamaConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `ollama_client_args` (or `client_args`) are arguments of `ollama.AsyncClient`, which override the timeouts here.
        `read_timeout_s` bounds the time between two pieces of an answer; a model that is loaded first takes that long,
        too.

        Args:
            host: The server's address; else `OLLAMA_HOST`, else this machine.
            ollama_client_args: Another word for `client_args`.
            client_args: Arguments for the client of the service's own package.
            connect_timeout_s: Seconds to open a connection.
            read_timeout_s: Seconds without a byte of the answer.
            config: The settings by name; `update_config` changes them.
        """
        self.host = host
        arguments = {**argument_mapping("client_args", client_args), **(ollama_client_args or {})}
        settings = ClientSettings(None, {"host": host, **arguments}, connect_timeout_s, read_timeout_s)
        super().__init__(None, config, settings)

    @staticmethod
    def _open(service: ModelService, settings: ClientSettings) -> OpenedClient:
        arguments = {**http_arguments(import_module("httpx"), settings), **settings.client_args}
        client = import_module("ollama").AsyncClient(**arguments)
        # There is no public way to the HTTP client, and a server of which nothing is known must not fill the memory.
        bound_answers(client._client)
        return client, client._client.aclose  # Its own `close` is newer than the oldest release that works.

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return OLLAMA_RULES

    def _request(self, call: ModelCall) -> dict[str, Any]:
        return chat_request(call)

    def _reader(self, call: ModelCall) -> ChatReader:
        return ChatReader(f"{call.config.get('model_id')}/{len(call.messages)}")

    async def _ask(self, client: Any, request: Mapping[str, Any]) -> Any:
        http = client._client  # the httpx client, with the server's address and the headers
        return _pieces(await http.send(http.build_request("POST", "/api/chat", json=request), stream=True))

    def _fields(self, piece: Any, *, whole: bool) -> Mapping[str, object]:
        fields = mapping_field(piece, "chat", "line")
        if fields.get("error"):
            raise refusal_error(OLLAMA, 0, str(fields["error"]))
        return fields

    def _errors(self) -> tuple[type[Exception], ...]:
        return ollama_errors()

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        return from_other_error(OLLAMA, error, import_module("httpx"), answering=answering)


async def _pieces(response: Any) -> AsyncGenerator[object]:
    """The lines of an answer. The client's own reader is made of generators that do not close each other, so its
    connections are used without it. Closing the generator releases the connection.
    """
    chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
    lines = LineCutter()
    try:
        if response.status_code >= 300:
            refusal = await _refusal(response, chunks)
            raise refusal from _status_error(response)
        async for chunk in chunks:
            for line in lines.feed(chunk):
                if line.strip():
                    yield json.loads(line)
        if lines.rest.strip():
            yield json.loads(lines.rest)
    finally:
        await release(chunks, response.aclose, ollama_errors())


def _status_error(response: Any) -> Exception | None:
    try:
        response.raise_for_status()
    except connection_errors(import_module("httpx")) as error:
        return error
    return None


async def _refusal(response: Any, chunks: AsyncGenerator[bytes, None]) -> RepertoryError:
    body = b"".join([chunk async for chunk in chunks])
    try:
        payload: object = json.loads(body)
    except ValueError:
        payload = None
    reason = payload.get("error") if is_mapping(payload) else None
    message = reason if isinstance(reason, str) else body.decode(errors="replace") or response.reason_phrase
    return refusal_error(OLLAMA, response.status_code, message, wait_s=retry_after_s(response.headers))


def ollama_errors() -> tuple[type[Exception], ...]:
    """The foreign errors that a call can raise. An `except` clause evaluates this only when something was raised."""
    return (*connection_errors(import_module("httpx")), *NONSENSE)


# Builds requests to `POST /api/chat`. Pure.
#
# Source: the Ollama API.

_OPTIONS = {"max_tokens": "num_predict", "temperature": "temperature", "top_p": "top_p", "stop_sequences": "stop"}


PROVIDER = "ollama"
"""The name of the server's reasoning in stored messages."""

OLLAMA_RULES = ServiceRules(
    service=OLLAMA.name,
    provider=PROVIDER,
    use_id_max=256,
    reasoning="any",
    merges_roles=False,
    images=frozenset(("png", "jpeg", "jpg", "webp")),
    documents=frozenset(("txt", "md", "csv", "html")),
)


def chat_request(call: ModelCall) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the server cannot take."""
    call = fitted_call(call, OLLAMA_RULES)
    config: Mapping[str, Any] = call.config
    if not config.get("model_id"):
        raise Invalid("OllamaModel needs a model_id, such as 'llama3.2'")
    if call.tool_choice and "auto" not in call.tool_choice:
        note(_log, INFO, "the tool choice is left out: Ollama has none", choice=sorted(call.tool_choice))
    system = call.system_text
    names: dict[str, str] = {}
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in call.messages:
        sent += _messages(message, names)
    settings = {name: config[key] for key, name in _OPTIONS.items() if config.get(key) is not None}
    request: dict[str, Any] = {
        "model": config["model_id"],
        "messages": sent,
        "options": {**(config.get("options") or {}), **settings},
        "stream": config.get("streaming") is not False,
    }
    if tools := [chat_tool(spec) for spec in call.tools]:
        request["tools"] = tools
    if config.get("keep_alive") is not None:
        request["keep_alive"] = config["keep_alive"]
    return request | dict(config.get("additional_args") or {})


def _messages(message: Message, names: dict[str, str]) -> list[dict[str, Any]]:
    """The server's messages for one of ours. `names`: the tool of each use, which results must name."""
    tools: list[dict[str, Any]] = []
    texts: list[str] = []
    images: list[str] = []
    uses: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in message["content"]:
        if "toolUse" in block:
            use = block["toolUse"]
            # The server has no ids: a result names its tool instead.
            names[use["toolUseId"]] = use["name"]
            uses.append({"function": {"name": use["name"], "arguments": input_of(use)}})
        elif "toolResult" in block:
            result: Mapping[str, Any] = block["toolResult"]
            lines: list[str] = []
            for part in result["content"]:
                _show(part, lines, images)
            name = names.get(result["toolUseId"])
            tools.append({"role": "tool", "content": "\n".join(lines), **({"tool_name": name} if name else {})})
        elif "reasoningContent" in block:
            reasoning: Mapping[str, Any] = block["reasoningContent"]
            thoughts.append(str(reasoning.get("reasoningText", {}).get("text", "")))
        else:
            _show(block, texts, images)
    if not texts and not images and not uses and tools:
        return tools
    sent: dict[str, Any] = {"role": message["role"], "content": "\n".join(texts)}
    sent |= {"images": images} if images else {}
    sent |= {"tool_calls": uses} if uses else {}
    sent |= {"thinking": "\n".join(thoughts)} if any(thoughts) else {}
    if not texts and not images and not uses:
        sent["content"] = BLANK_TEXT
    return [*tools, sent]


def _show(block: Mapping[str, Any], texts: list[str], images: list[str]) -> None:
    text = text_in(block)
    if text is not None:
        texts += [text] if text.strip() else []
    elif "image" in block:
        images.append(base64_in("image", block["image"], OLLAMA.name))
    elif "document" in block:
        document = document_in(block, OLLAMA.name)
        if document.pdf is not None:
            raise cannot_take("document", OLLAMA.name, "it reads no PDF", document.name)
        texts.append(document.text)
    elif "cachePoint" not in block:
        raise cannot_take(block_kind(block), OLLAMA.name, "it has no such blocks", sorted(block))


# One answer of the server as events of ours.

_STOPS = {"stop": "end_turn", "length": "max_tokens"}


class ChatReader(AnswerReader):
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_last", "_seed", "_used")

    def __init__(self, seed: str) -> None:
        """`seed`: ids of tool uses are made from it when the server gives none, as older releases do."""
        super().__init__(PROVIDER)
        self._seed = seed
        self._used = 0
        self._last: Mapping[str, object] | None = None

    def feed(self, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
        yield from self._begin_message()
        message = mapping_field(piece.get("message") or {}, "chat", "message")
        if message.get("thinking"):
            thought = required_text(message["thinking"], "chat", "thinking")
            yield from self._speak("reasoning", {"reasoningContent": {"text": thought}})
        if message.get("content"):
            yield from self._speak("text", {"text": required_text(message["content"], "chat", "content")})
        uses = message.get("tool_calls") or ()
        if not isinstance(uses, list | tuple):
            malformed("chat", "a list under 'tool_calls'", uses)
        for use in cast("Sequence[object]", uses):
            called = mapping_field(use, "chat", "tool_calls")
            function = mapping_field(called.get("function"), "chat", "function")
            yield from self._use(function, str(called.get("id") or ""), str(piece.get("created_at")))
        if piece.get("done"):
            self._last = piece

    def finish(self) -> Iterator[StreamEvent]:
        last = self._last
        if last is None:
            raise ModelStreamBroken("Ollama ended the stream in the middle of an answer")
        yield from self._fall_silent()
        reason = str(last.get("done_reason") or "stop")
        stop = _STOPS.get(reason, reason)
        yield {"messageStop": {"stopReason": "tool_use" if self._used and stop == "end_turn" else stop}}
        given, made = token_count(last.get("prompt_eval_count")), token_count(last.get("eval_count"))
        usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
        event = metadata_event(usage, model=last.get("model"))
        yield {"metadata": {**event, "metrics": {"latencyMs": token_count(last.get("total_duration")) // 1_000_000}}}

    def _use(self, function: Mapping[str, object], given_id: str, when: str) -> Iterator[StreamEvent]:
        yield from self._fall_silent()
        name, arguments = required_text(function.get("name"), "chat", "name"), function.get("arguments")
        made = hashlib.sha256(f"{self._seed}/{when}/{self._used}/{name}".encode()).hexdigest()[:24]
        use: ContentBlockStartToolUse = {"toolUseId": given_id or f"call_{made}", "name": name}
        text = json.dumps(arguments if is_mapping(arguments) else {"input": arguments})
        self._used += 1
        yield from self._block({"toolUse": use}, {"toolUse": {"input": text}})
