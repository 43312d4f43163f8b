"""Models on Anthropic's own service, through the Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from repertory.backends.models.anthropic_answers import PROVIDER, MessagesReader
from repertory.backends.models.anthropic_citations import sent_citations
from repertory.backends.models.caching import CacheConfig, CacheToolsConfig, with_cache_points
from repertory.backends.models.content import (
    BLANK_TEXT,
    block_kind,
    cannot_take,
    described,
    document_in,
    image_in,
    input_of,
    mentions_tools,
    text_in,
)
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.provider import CountingConfig, ModelCall, fitted_call
from repertory.backends.models.sdk import ClientSettings, ModelService, SDKModel, count_in, with_params
from repertory.backends.wire_json import refers_to_itself
from repertory.core.answer import is_mapping
from repertory.core.json_bytes import to_base64
from repertory.core.messages import is_one_text
from repertory.core.provider_content import container_of, use_of
from repertory.errors import ModelFailed, RepertoryError, Unavailable

if TYPE_CHECKING:
    from repertory.core.messages import Message

DEFAULT_MODEL_ID = "claude-sonnet-4-6"
DEFAULT_MAX_TOKENS = 8_192
ANTHROPIC = ModelService(
    name="Anthropic",
    model="AnthropicModel",
    package="anthropic",
    client="AsyncAnthropic",
    root_error="AnthropicError",
    resource="messages",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    keyless=False,
)


class AnthropicConfig(CountingConfig, total=False):
    """Settings of an `AnthropicModel`."""

    max_tokens: int
    """The most tokens of one answer. The service requires it; the default is 8192."""
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `thinking`. They override ours; None removes a field.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    anthropic_tools: Sequence[Mapping[str, Any]] | None
    """Tools that run at the service, such as its web search."""
    cache_config: CacheConfig | None
    """The settings for the parts of a request that the service is asked to cache."""
    cache_prompt: str | None
    """The type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | CacheToolsConfig | None
    """The type of the cache point after the tools."""
    tool_search: bool | None
    """True leaves the search for deferred tools to the service (`ToolSearch`); its models from 4.5 on have one."""
    code_mode: bool | None
    """True has the service run the code that calls tools (`CodeMode`), in its own container; its models from Sonnet 4.5
    and Opus 4.5 on do so. The service keeps what its containers hold by its own rules.
    """


class AnthropicModel(SDKModel):
    """A model on Anthropic's service, through the official SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `ANTHROPIC_API_KEY`; the SDK reads its other environment variables at
    the first call. Many agents may use one model at once, from several event loops; each loop has its own connections,
    released by `aclose` in that loop.

    The SDK's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        model: The model's id; None for the default, or for `model_id=` in `config`.
        client_args: Arguments for the client of the service's own package.
        client: A client that you have made; Repertory does not close it.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        AnthropicConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    AnthropicConfig = AnthropicConfig
    _known = AnthropicConfig
    _defaults = AnthropicConfig(model_id=DEFAULT_MODEL_ID, max_tokens=DEFAULT_MAX_TOKENS)
    _service = ANTHROPIC.name
    _sdk = ANTHROPIC

    def __init__(
        self,
        model: str | None = None,
        /,
        *,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[AnthropicConfig],
    ) -> None:
        """`AnthropicConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `anthropic.AsyncAnthropic` and override the timeouts here. `client` is your own
        such client: it is used as it is, with its own timeouts and retries, and never closed. `read_timeout_s` bounds
        the time between two pieces of an answer, not the whole answer.
        """
        super().__init__(model, config, ClientSettings(client, client_args, connect_timeout_s, read_timeout_s))

    _milder_after = (ModelFailed, Unavailable)

    @property
    def searches_tools(self) -> bool:
        """True if the service searches the deferred tools of an agent itself."""
        return bool(self._config.get("tool_search"))

    @property
    def runs_code(self) -> bool:
        """True if the service runs code that calls the tools of an agent."""
        return bool(self._config.get("code_mode"))

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return ANTHROPIC_RULES

    def _request(self, call: ModelCall) -> dict[str, Any]:
        return messages_arguments(call)

    def _reader(self, call: ModelCall) -> MessagesReader:
        return MessagesReader()

    def _milder(self, request: Mapping[str, Any], error: RepertoryError) -> Mapping[str, Any] | None:
        """The request without what the service has lost, or reads no longer: the container of an earlier answer with
        the code that waits in it, or the places of sources. Otherwise no later prompt of the conversation would be
        answered.
        """
        words = str(error).lower()
        body: Mapping[str, Any] = request.get("extra_body") or {}
        own: Mapping[str, Any] = self._config.get("params") or {}
        # It answers 500, without words, for a container that it should know (pydantic-ai, issue 7833).
        about_container = "container" in words if type(error) is ModelFailed else error.fields.get("status") == 500
        if about_container and "container" not in own:
            messages = without_waiting_code(request["messages"])
            rest = {name: body[name] for name in body if name != "container"}
            if "container" in body or (messages != request["messages"] and type(error) is ModelFailed):
                return {**request, "extra_body": rest, "messages": messages}
        if type(error) is ModelFailed and "citation" in words and "messages." in words:
            messages = without_citations(request["messages"])
            return None if messages == request["messages"] else {**request, "messages": messages}
        return None

    async def _count(self, client: Any, call: ModelCall) -> int:
        answer = await client.messages.count_tokens(**counting_arguments(call))
        return count_in(answer, "count_tokens", "input_tokens")


# Builds requests to the Messages API: settings and a conversation as arguments of the SDK's call.
#
# Pure. Our own fields (`metadata`, `tracking_id`) are never sent. Parts of a sound history that the service would
# refuse (blank text, tool blocks without a tool list, tool results after text, thinking that a turn did not begin with)
# are changed so that it accepts them.
#
# Source: the Messages API, `POST /v1/messages`; extended thinking, programmatic tool calling, code execution, search
# of tools.

_SERVICE = "Anthropic"
ANTHROPIC_RULES = ServiceRules(
    service=_SERVICE,
    provider=PROVIDER,
    tool_name_max=128,
    use_id_max=256,
    reasoning="signed",
    merges_roles=False,
    counts_messages=True,
    results_first=True,
    error_text_only=True,
    blocks=frozenset(("searchResult",)),
)
_CACHEABLE = frozenset(("text", "image", "document", "search_result", "tool_use", "tool_result"))
_THOUGHTS = frozenset(("thinking", "redacted_thinking"))
_TOOL_SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
_CODE_EXECUTION = {"type": "code_execution_20260120", "name": "code_execution"}
_PLACEHOLDER_TOOL: dict[str, Any] = {
    "name": "noop",
    "description": "Does nothing. Never call it.",
    "input_schema": {"type": "object", "properties": {}},
}


def messages_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    config: AnthropicConfig = call.config
    call = fitted_call(call, ANTHROPIC_RULES)
    arguments = _conversation(call)
    arguments["max_tokens"] = config.get("max_tokens") or DEFAULT_MAX_TOKENS
    params = dict(config.get("params") or {})
    if call.tool_choice and call.tool_specs:
        # The service refuses a forced tool while the model thinks.
        forced = "auto" not in call.tool_choice and _thinks(params)
        arguments["tool_choice"] = {"type": "auto"} if forced else _tool_choice(call.tool_choice)
    if config.get("streaming") is not False:
        arguments["stream"] = True
    # None removes the field: thinking is off for this one request, until the turn is over.
    if _thinks(params, "enabled") and _began_without_thinking(arguments["messages"]):
        body: Mapping[str, Any] = params.get("extra_body") or {}
        params |= {"thinking": None, "extra_body": {name: body[name] for name in body if name != "thinking"}}
    if (container := _container_in_use(call)) is not None:
        own = params.get("container")
        if own is None:
            params["container"] = container
        elif is_mapping(own) and "id" not in own:
            params["container"] = {"id": container, **own}
    return with_params(arguments, params)


def counting_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of a call that counts the tokens of such a request."""
    arguments = _conversation(fitted_call(call, ANTHROPIC_RULES))
    params: Mapping[str, Any] = call.config.get("params") or {}
    return arguments | {name: params[name] for name in ("thinking", "extra_headers") if params.get(name)}


def _thinks(params: Mapping[str, Any], *kinds: str) -> bool:
    """True if the model thinks before it answers, in one of these ways."""
    body: Mapping[str, object] = params.get("extra_body") or {}
    thinking: object = params.get("thinking") or body.get("thinking")
    return is_mapping(thinking) and thinking.get("type") in (kinds or ("enabled", "adaptive"))


def _began_without_thinking(messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if a turn goes on whose first answer has no thinking in front, as the answer of another model. The service
    refuses such a turn while thinking is enabled.
    """
    began = len(messages)
    while began and (messages[began - 1]["role"] == "assistant" or _has_results_alone(messages[began - 1])):
        began -= 1
    if began == len(messages):
        return False
    kinds = [block["type"] for block in messages[began]["content"] if block["type"] != "compaction"]
    return not kinds or kinds[0] not in _THOUGHTS


def _has_results_alone(message: Mapping[str, Any]) -> bool:
    return all(block["type"] == "tool_result" for block in message["content"])


def _container_in_use(call: ModelCall) -> str | None:
    """The container of the latest answer that has one: its files are there."""
    for message in reversed(call.messages):
        for block in message["content"]:
            own = block.get("providerContent")
            if own is not None and own["provider"] == PROVIDER and (container := container_of(own["content"])):
                return container
    return None


def without_citations(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the texts of answers alone."""
    return [
        {**message, "content": [_uncited(block) for block in message["content"]]}
        if message["role"] == "assistant"
        else dict(message)
        for message in messages
    ]


def without_waiting_code(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages without the service's own tool uses that wait for the results at the end, so that those results are
    answers to the model itself. Code that waits is lost with its container.
    """
    blocks = [block for message in messages for block in message["content"]]
    answered = {block.get("tool_use_id") for block in blocks}
    uses = [block for block in blocks if block["type"] == "server_tool_use"]
    waiting = {block["id"] for block in uses if block["id"] not in answered}
    if not waiting or messages[-1]["role"] == "assistant":  # An answer that paused goes on by itself.
        return list(messages)
    # What it has asked for of the service goes with it, with its results.
    waiting |= {block["id"] for block in uses if _code_of(block) in waiting}
    return [
        {
            **message,
            "content": [
                {name: block[name] for name in block if name != "caller"} if _code_of(block) in waiting else block
                for block in message["content"]
                if waiting.isdisjoint((block.get("id"), block.get("tool_use_id")))
            ],
        }
        for message in messages
    ]


def _code_of(block: Mapping[str, Any]) -> object:
    """The id of the code that has asked for this tool use; None where the model has."""
    caller = block.get("caller")
    return caller.get("tool_id") if is_mapping(caller) else None


def _uncited(block: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "text", "text": block["text"]} if block["type"] == "text" and "citations" in block else block


def _conversation(call: ModelCall) -> dict[str, Any]:
    call = with_cache_points(call, claude=True, converse=False)
    ran: set[str] = set()
    messages = [_message(message, ran) for message in call.messages]
    if messages and messages[-1]["role"] == "assistant":
        _end_without_space(messages[-1]["content"])
    sent: dict[str, Any] = {"model": call.config.get("model_id"), "messages": messages}
    if system := _system(call):
        sent["system"] = system
    if tools := _tools(call):
        sent["tools"] = tools
    return sent


def _end_without_space(content: list[dict[str, Any]]) -> None:
    """The service refuses a last answer, which it goes on with, if its text ends in white space."""
    if content[-1]["type"] == "text":
        content[-1]["text"] = content[-1]["text"].rstrip() or BLANK_TEXT


def _message(message: Message, ran: set[str]) -> dict[str, Any]:
    """`ran`: the ids of the tool uses of the service itself up to here."""
    plain = message["content"][0].get("text", "") if is_one_text(message["content"]) else ""
    if plain.strip():
        return {"role": message["role"], "content": [{"type": "text", "text": plain}]}
    blocks = _marked(message["content"], ran, answer=message["role"] == "assistant")
    results = [block for block in blocks if block["type"] == "tool_result"]
    others = [block for block in blocks if block["type"] != "tool_result"]
    # Results first: the service refuses a message in which they follow a text.
    return {"role": message["role"], "content": [*results, *others] or [{"type": "text", "text": BLANK_TEXT}]}


def _marked(content: Sequence[Mapping[str, Any]], ran: set[str], *, answer: bool = False) -> list[dict[str, Any]]:
    """The blocks in the service's form. A cache point marks the block before it; blank text in an answer, which the
    service refuses alone, joins its neighbour: it may stand between two texts with citations.
    """
    sent: list[dict[str, Any]] = []
    own: set[int] = set()
    space = ""
    for block in content:
        if "cachePoint" in block:
            markable = [at for at, made in enumerate(sent) if at not in own and made["type"] in _CACHEABLE]
            if markable:
                sent[markable[-1]] |= _cache_control(block["cachePoint"])
        elif "providerContent" in block:
            native = block["providerContent"]["content"]
            if container_of(native) is not None:
                continue
            if (use_id := use_of(native)) is not None:
                ran.add(use_id)
            own.add(len(sent))
            sent.append(dict(native))
        elif answer and (text := text_in(block)) is not None and not text.strip():
            if sent and sent[-1]["type"] == "text" and len(sent) - 1 not in own:
                sent[-1]["text"] += text
            else:
                space = text
            continue
        else:
            made = _block(block, ran, answer=answer)
            if space and made and made[0]["type"] == "text":
                made[0]["text"] = space + made[0]["text"]
            sent += made
        space = ""
    return sent


def _block(block: Mapping[str, Any], ran: set[str], *, answer: bool) -> list[dict[str, Any]]:
    """The block in the service's form; none for blocks that the service would refuse and that can be left out."""
    if "toolUse" in block:
        use = block["toolUse"]
        caller = use.get("caller")
        called = {"caller": caller} if is_mapping(caller) and caller.get("tool_id") in ran else {}
        return [{"type": "tool_use", "id": use["toolUseId"], "name": use["name"], "input": input_of(use), **called}]
    if "toolResult" in block:
        return [_tool_result(block["toolResult"])]
    if "reasoningContent" in block:
        return _thinking(block["reasoningContent"])
    sent = _sent(block)
    if answer and sent and "citationsContent" in block:
        citations = sent_citations(block["citationsContent"].get("citations", ()))
        return [sent[0] | ({"citations": citations} if citations else {})]
    return sent


def _sent(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Text, an image, a document or a search result: the blocks allowed in messages and in tool results."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, _SERVICE)
        return [{"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}]
    if "document" in block:
        return [_document(block)]
    if "searchResult" in block:
        return [_search_result(block["searchResult"])]
    if "providerContent" in block:
        return [dict(block["providerContent"]["content"])]
    raise cannot_take(block_kind(block), _SERVICE, "it has no such blocks", sorted(block))


def _search_result(result: Mapping[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": part["text"]} for part in result.get("content", ()) if part.get("text")]
    citations = {"citations": result["citations"]} if result.get("citations") else {}
    fields = {"source": result.get("source", ""), "title": result.get("title", ""), "content": content}
    return {"type": "search_result", **fields, **citations}


def _document(block: Mapping[str, Any]) -> dict[str, Any]:
    document = document_in(block, _SERVICE)
    if document.pdf is not None:
        source: dict[str, Any] = {"type": "base64", "media_type": "application/pdf", "data": document.pdf}
    elif len(document.texts) == 1:
        source = {"type": "text", "media_type": "text/plain", "data": document.texts[0]}
    else:
        source = {"type": "content", "content": [{"type": "text", "text": text} for text in document.texts]}
    extras = {key: block["document"][key] for key in ("context", "citations") if block["document"].get(key)}
    return {"type": "document", "title": document.name, "source": source, **extras}


def _tool_result(result: Mapping[str, Any]) -> dict[str, Any]:
    content = [made for part in result["content"] if "cachePoint" not in part for made in _sent(part)]
    sent: dict[str, Any] = {"type": "tool_result", "tool_use_id": result["toolUseId"]}
    failed = result.get("status") == "error"
    return sent | ({"content": content} if content else {}) | ({"is_error": True} if failed else {})


def _thinking(reasoning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reasoning goes back exactly as it came. Another service's reasoning has no signature that this one accepts."""
    if "redactedContent" in reasoning:
        return [{"type": "redacted_thinking", "data": redacted_text(reasoning["redactedContent"])}]
    spoken = reasoning.get("reasoningText", {})
    if not spoken.get("signature"):
        return []
    return [{"type": "thinking", "thinking": spoken.get("text", ""), "signature": spoken["signature"]}]


def redacted_text(data: bytes) -> str:
    """Redacted reasoning as text for this service: its own as sent, another service's bytes in base64."""
    return data.decode() if data.isascii() else to_base64(data)


def _system(call: ModelCall) -> str | list[dict[str, Any]] | None:
    if call.system_prompt_content is None:
        return call.system_text or None
    return _marked(call.system_blocks, set()) or None


def _tools(call: ModelCall) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    is_free = call.tool_choice is None or "auto" in call.tool_choice  # A forced tool is one of the agent's.
    own = [dict(each) for each in call.config.get("anthropic_tools") or ()] if is_free else []
    runner = next((each for each in own if str(each.get("type")).startswith("code_execution_")), _CODE_EXECUTION)
    for spec in call.tool_specs:
        if "cachePoint" not in spec:
            tools.append(_tool(spec, str(runner["type"]) if is_free else None))
        else:
            # The service refuses the mark at a definition that its model is not shown at first.
            for last in [tool for tool in tools if "defer_loading" not in tool][-1:]:
                last |= _cache_control(spec["cachePoint"])
    if any("defer_loading" in tool for tool in tools):
        tools.append(dict(_TOOL_SEARCH))
    if runner is _CODE_EXECUTION and any("allowed_callers" in tool for tool in tools):
        tools.append(dict(_CODE_EXECUTION))
    tools += own
    if tools:
        return tools
    return [_PLACEHOLDER_TOOL] if mentions_tools(call.messages) else []


def _tool(spec: Mapping[str, Any], runner: str | None) -> dict[str, Any]:
    """`runner`: the type of the service's tool whose code may call this one; None where none may."""
    tool = {**described(spec), "input_schema": spec["inputSchema"]["json"]}
    if spec.get("inputExamples"):
        tool["input_examples"] = list(spec["inputExamples"])
    if spec.get("deferLoading"):
        tool["defer_loading"] = True
    # The service refuses the whole request for a schema that refers to itself, if code may call its tool.
    if spec.get("codeCalls") and runner is not None and not refers_to_itself(tool["input_schema"]):
        tool["allowed_callers"] = ["direct", runner] if spec["codeCalls"] == "also" else [runner]
    return tool


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" in choice:
        return {"type": "tool", "name": choice["tool"]["name"]}
    return {"type": "any" if "any" in choice else "auto"}


def _cache_control(point: Mapping[str, Any]) -> dict[str, Any]:
    lifetime = {"ttl": point["ttl"]} if point.get("ttl") else {}
    return {"cache_control": {"type": "ephemeral", **lifetime}}
