"""Models on Amazon Bedrock, through Converse and ConverseStream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.aws_errors import (
    EXPIRED,
    NO_CREDENTIALS,
    NO_REGION,
    THROTTLED,
    UNAVAILABLE,
    WRONG_SIGNATURE,
    aws_client_errors,
)
from repertory.backends.models.caching import CacheConfig, CacheToolsConfig, with_cache_points
from repertory.backends.models.content import BLANK_TEXT, block_kind, cannot_take, input_of, mentions_tools
from repertory.backends.models.provider import (
    NONSENSE,
    BaseModelConfig,
    ModelCall,
    ProviderModel,
    is_overflow,
    model_call,
    release,
    retry_after_s,
)
from repertory.core.answer import message_events
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)

if TYPE_CHECKING:
    from repertory.core.converse import MetadataEvent, RedactContentEvent, StreamEvent
    from repertory.core.messages import Message, ToolSpec

BEDROCK = AwsService(name="bedrock-runtime", wanted_by="BedrockModel", extra="bedrock")
DEFAULT_MODEL_ID = "global.anthropic.claude-sonnet-4-6"


class BedrockConfig(BaseModelConfig, total=False):
    """Settings of a `BedrockModel`. A field that is missing or None is left to the service."""

    model_id: str
    """A model id, an inference profile, or an ARN."""
    streaming: bool | None
    """True for ConverseStream (the default), False for Converse."""
    use_native_token_count: bool | None
    """True if `count_tokens` asks the service. False by default, since it is one more network call."""
    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    stop_sequences: list[str] | None
    cache_config: CacheConfig | None
    """What the service is asked to cache; `auto` means the Claude models."""
    cache_prompt: str | None
    """Type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | CacheToolsConfig | None
    """Type of the cache point after the tools."""
    guardrail_id: str | None
    guardrail_version: str | None
    guardrail_trace: Literal["enabled", "disabled", "enabled_full"] | None
    """Defaults to `enabled`, which tells whether the input or the output was blocked."""
    guardrail_stream_processing_mode: Literal["sync", "async"] | None
    guardrail_latest_message: bool | None
    """True if the guardrail sees only the latest user message."""
    guardrail_redact_input: bool | None
    """True if blocked input is replaced in the conversation (the default)."""
    guardrail_redact_input_message: str | None
    guardrail_redact_output: bool | None
    """True if our text replaces blocked output, instead of the guardrail's. False by default."""
    guardrail_redact_output_message: str | None
    include_tool_result_status: Literal["auto"] | bool | None
    """True if tool results carry their status; `auto` (the default) sends it to the models that accept it."""
    service_tier: str | None
    additional_request_fields: dict[str, Any] | None
    additional_response_field_paths: list[str] | None
    additional_args: dict[str, Any] | None
    """Request parameters that are added unchanged."""


class BedrockModel(ProviderModel):
    """A model on Amazon Bedrock. Building one connects to nothing.

    Credentials and region come from the arguments, else from the environment and `~/.aws` as in every AWS tool; they
    are looked up at the first call. Many agents may use one model at once, from several event loops; each loop has its
    own connections, released by `aclose` in that loop.

    botocore's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        region_name: The AWS region; None for the one of the environment.
        boto_session: A boto3 session, whose credentials count; None for those of the environment.
        endpoint_url: Another address of the service, such as one of a test.
        boto_client_config: A botocore `Config` for the client.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        BedrockConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
    """

    BedrockConfig = BedrockConfig
    _known = BedrockConfig
    _service = "Bedrock"

    def __init__(
        self,
        *,
        region_name: str | None = None,
        boto_session: Any = None,
        endpoint_url: str | None = None,
        boto_client_config: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[BedrockConfig],
    ) -> None:
        """`BedrockConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `boto_session` is a boto3, botocore or aiobotocore session that provides credentials and region;
        `boto_client_config` is a botocore `Config` that overrides ours. `read_timeout_s` bounds the time between two
        pieces of an answer, not the whole answer.
        """
        if region_name is not None and boto_session is not None:
            msg = "region_name and boto_session exclude each other: the session has a region"
            raise ValueError(msg)
        start: BedrockConfig = {"model_id": DEFAULT_MODEL_ID}
        settings = AwsSettings(
            region_name=region_name,
            boto_session=boto_session,
            endpoint_url=endpoint_url,
            boto_client_config=boto_client_config,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        super().__init__(start, config, aws_clients(BEDROCK, settings))

    def format_request(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt_content: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        dynamic_trailing_blocks: int = 0,
    ) -> dict[str, Any]:
        """The parameters that Converse would be called with, cache points and guardrail included.

        Args:
            messages: The messages, oldest first.
            tool_specs: The tools that the model may use.
            system_prompt_content: The system prompt as content blocks, in place of `system_prompt`.
            tool_choice: Which tool the model has to use; None leaves it to the model.
            dynamic_trailing_blocks: How many of the last content blocks change with each call, so that no cache point
                stands behind them.
        """
        options = {
            "system_prompt_content": system_prompt_content,
            "tool_choice": tool_choice,
            "dynamic_trailing_blocks": dynamic_trailing_blocks,
        }
        return converse_request(model_call(self._config, messages, tool_specs, None, options))

    def convert_non_streaming_to_streaming(self, response: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """An answer of Converse as the events that ConverseStream would have sent.

        Args:
            response: The answer of Converse.

        Raises:
            ModelFailed: For an answer without a message. Read what the service sent.
        """
        return events_of_whole(response)

    async def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        config: BedrockConfig = call.config
        request = converse_request(call)
        stop_reason: str | None = None
        judged = False
        try:
            async with aclosing(await self._ask(request, streaming=config.get("streaming") is not False)) as events:
                async for event in events:
                    if "messageStop" in event:
                        stop_reason = event["messageStop"].get("stopReason")
                    yield event
                    if "metadata" in event:
                        judged = True
                        if verdict := redaction(config, stop_reason, event["metadata"]):
                            yield verdict
                if not judged and (verdict := redaction(config, stop_reason, {})):
                    yield verdict
        except bedrock_errors() as error:
            raise from_bedrock_error(error) from error

    def _counting(self, call: ModelCall) -> Callable[[], Awaitable[int]]:
        request = counting_request(converse_request(call))

        async def counted() -> int:
            try:
                return int((await (await self._clients.get()).count_tokens(**request))["inputTokens"])
            except (*bedrock_errors(), *NONSENSE) as error:
                raise from_bedrock_error(error) from error

        return counted

    async def _ask(self, request: dict[str, Any], *, streaming: bool) -> AsyncGenerator[StreamEvent, None]:
        client = await self._clients.get()
        try:
            if streaming:
                response = await client.converse_stream(**request)
                return converse_events(response["stream"])
            return _one_by_one([*events_of_whole(await client.converse(**request))])
        except NONSENSE as error:
            raise ModelFailed(f"the model's answer cannot be read: {error}") from error


async def _one_by_one(events: Iterable[StreamEvent]) -> AsyncGenerator[StreamEvent, None]:
    for event in events:
        yield event


def events_of_whole(response: Mapping[str, Any]) -> Iterator[StreamEvent]:
    """The answer of Converse as the events that ConverseStream would have sent. Errors: `ModelFailed` for none."""
    message = response.get("output", {}).get("message")
    stop_reason = response.get("stopReason")
    if not message or not isinstance(stop_reason, str):
        raise ModelFailed("the model answered without a message", response=sorted(response))
    yield from message_events(message.get("content", ()), stop_reason=stop_reason)
    metadata = {key: response[key] for key in ("usage", "metrics", "trace") if key in response}
    yield {"metadata": cast("MetadataEvent", metadata)}


# After a guardrail's verdict: which of the two messages must be replaced.
#
# Pure. The trace of the answer says whether the input or the output was blocked. Without a trace this is unknown, so
# the input counts as blocked too: keeping a refused text is worse than hiding an accepted one.

INTERVENED = "guardrail_intervened"
"""The stop reason when a guardrail has replaced the answer."""
REDACTED_INPUT = "[User input redacted.]"
REDACTED_OUTPUT = "[Assistant output redacted.]"


def redaction(config: BedrockConfig, stop_reason: str | None, metadata: Mapping[str, Any]) -> StreamEvent | None:
    """The `redactContent` event for a blocked answer; None when nothing must be replaced."""
    if stop_reason != INTERVENED:
        return None
    trace = metadata.get("trace", {}).get("guardrail")
    body: RedactContentEvent = {}
    if config.get("guardrail_redact_input") is not False and (not trace or _blocked(trace.get("inputAssessment"))):
        body["redactUserContentMessage"] = config.get("guardrail_redact_input_message") or REDACTED_INPUT
    if config.get("guardrail_redact_output") and (not trace or _blocked(trace.get("outputAssessments"))):
        body["redactAssistantContentMessage"] = config.get("guardrail_redact_output_message") or REDACTED_OUTPUT
    return {"redactContent": body} if body else None


def _blocked(assessment: object) -> bool:
    """True if anything in the assessment was found and blocked, at any depth."""
    if isinstance(assessment, Mapping):
        found = cast("Mapping[str, object]", assessment)
        blocked = found.get("action") == "BLOCKED" and found.get("detected", True) is True
        return blocked or any(_blocked(value) for value in found.values())
    if isinstance(assessment, list | tuple):
        return any(_blocked(value) for value in cast("Sequence[object]", assessment))
    return False


# ConverseStream over httpx: the frames of an answer as events.
#
# aiobotocore reads event streams through `response.content.iter_chunks()`, which aiohttp has and httpx has not. Here
# the bytes come from httpx's `aiter_raw()`, botocore's `EventStreamBuffer` cuts them into frames, and aiobotocore's
# parser turns frames into events by the service model. One generator holds the connection, so closing it releases it.


async def converse_events(stream: Any) -> AsyncGenerator[StreamEvent, None]:
    """The events of a `ConverseStream` response, in order, until the service ends the stream.

    Errors: botocore's and httpx's; `ModelFailed` for a frame that does not fit the service model; `ModelStreamBroken`
    when the stream ended without `messageStop`. Closing the generator, also by cancellation, releases the connection.
    """
    stopped = False
    async with aclosing(framed_events(stream)) as events:
        async for event in events:
            stopped = stopped or "messageStop" in event
            yield cast("StreamEvent", event)
    if not stopped:
        raise ModelStreamBroken("Bedrock ended the stream in the middle of an answer")


async def framed_events(stream: Any) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a response that is a stream of frames, by its service model. Closing the generator, also by
    cancellation, releases the connection.
    """
    response = stream._raw_stream  # the httpx response; aiobotocore offers no public way to it
    chunks: AsyncGenerator[bytes, None] = response.aiter_raw()
    frames = import_module("botocore.eventstream").EventStreamBuffer()
    try:
        async for chunk in chunks:
            frames.add_data(chunk)
            for frame in frames:
                if event := await _parsed(stream, frame):
                    yield event
    finally:
        await release(chunks, response.aclose, bedrock_errors())


async def _parsed(stream: Any, frame: Any) -> dict[str, Any]:
    """One frame as an event; empty when the service model does not know it."""
    try:
        return await stream._parse_event(frame) or {}
    except (import_module("botocore.parsers").ResponseParserError, *NONSENSE) as error:
        raise ModelFailed("malformed model event", event=frame.headers.get(":event-type"), reason=str(error)) from error


# Maps errors of Bedrock and botocore to ours. Only this section names them.
#
#   slow down        throttling, quotas, status 429                                       Throttled
#   try again        5xx, model not ready or timed out, no connection, read timeout       Unavailable
#   broke off        the connection or the model ended in the middle of an answer         ModelStreamBroken
#   shorten          the messages do not fit the window                                   ContextWindowOverflowException
#   give up          refused, not allowed, no credentials, no region, nonsense            ModelFailed
#
# Source: Amazon Bedrock API reference, errors of `ConverseStream`.


_THROTTLED = THROTTLED | {"limitexceededexception", "servicequotaexceededexception"}
_UNAVAILABLE = UNAVAILABLE | {
    "internalfailure",
    "serviceunavailableexception",
    "modelnotreadyexception",
    "modeltimeoutexception",
    "modelerrorexception",
    "requesttimeoutexception",
}
_BROKEN_OFF = "modelstreamerrorexception"
_ACCESS = {
    "accessdeniedexception": "the identity may not use this model: allow bedrock:InvokeModel and enable the model",
    "unrecognizedclientexception": "AWS does not know these credentials: check AWS_ACCESS_KEY_ID and its secret",
    "invalidsignatureexception": WRONG_SIGNATURE,
    "expiredtokenexception": EXPIRED,
    "expiredtoken": EXPIRED,
}


def service_error(
    code: str, status: int, message: str, retry_after_s: float | None = None, *, service: str = "Bedrock"
) -> RepertoryError:
    """The error for a refusal by the service. `code` in any spelling, `status` 0 when it came inside a stream."""
    name = code.lower()
    fields: dict[str, object] = {"code": code, "status": status} if status else {"code": code}
    if is_overflow(message):
        return ContextWindowOverflowException(message, **fields)
    if name == _BROKEN_OFF:
        return ModelStreamBroken(f"the model broke off: {message}", **fields)
    if name in _UNAVAILABLE:
        return Unavailable(f"the model is not available: {message}", **fields)
    if name in _THROTTLED or status == 429:
        return Throttled(f"{service} asks for fewer requests: {message}", retry_after_s=retry_after_s, **fields)
    if status >= 500:
        return Unavailable(f"{service} is not available: {message}", **fields)
    hint = _ACCESS.get(name)
    return ModelFailed(f"{hint} ({message})" if hint else f"{service} refused the request: {message}", **fields)


def bedrock_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_bedrock_error` maps. An `except` clause evaluates this only when something was raised."""
    return (*aws_client_errors(), import_module("botocore.eventstream").ParserError)


def from_bedrock_error(error: Exception, service: str = "Bedrock") -> RepertoryError:
    """Our error for one of `bedrock_errors`. Raise it `from` the original."""
    import httpx2

    boto, frames = import_module("botocore.exceptions"), import_module("botocore.eventstream")
    match error:
        case boto.ClientError():
            return _from_response(error.response, service)
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
            return ModelFailed(NO_CREDENTIALS)
        case boto.NoRegionError():
            return ModelFailed(NO_REGION)
        case boto.HTTPClientError() | boto.ConnectionError():
            return Unavailable(f"{service} cannot be reached: {error}")
        case httpx2.HTTPError() | httpx2.StreamError():
            return ModelStreamBroken(f"the connection ended within an answer: {type(error).__name__}: {error}")
        case frames.ParserError():
            return ModelStreamBroken(f"the answer arrived damaged: {error}")
        case _:
            return ModelFailed(f"the model call failed: {error}")


def _from_response(response: Mapping[str, Any], service: str) -> RepertoryError:
    details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, message = str(details.get("Code", "Unknown")), str(details.get("Message", "no message"))
    wait_s = retry_after_s(meta.get("HTTPHeaders", {}))
    return service_error(code, meta.get("HTTPStatusCode", 0), message, wait_s, service=service)


# Builds requests to Converse and ConverseStream: settings and a conversation as request parameters.
#
# Pure. Our own fields (`metadata`, `tracking_id`) are never sent. Parts of a sound history that the service would
# refuse (blank text, tool blocks without a tool list, tool input that is no object) are changed so that it accepts
# them.
#
# Source: Amazon Bedrock API reference, `Converse` and `ConverseStream`.


_INFERENCE = {
    "temperature": "temperature",
    "max_tokens": "maxTokens",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
_ADDITIONAL = {
    "additional_request_fields": "additionalModelRequestFields",
    "additional_response_field_paths": "additionalModelResponseFieldPaths",
}
_PLACEHOLDER_TOOL: dict[str, Any] = {
    "toolSpec": {
        "name": "noop",
        "description": "Does nothing. Never call it.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


_MEDIA = ("audio", "document", "image", "video")


def converse_request(call: ModelCall) -> dict[str, Any]:
    """The parameters of one call."""
    config: BedrockConfig = call.config
    model_id = config.get("model_id", "").lower()
    call = with_cache_points(call, claude="claude" in model_id or "anthropic" in model_id, converse=True)
    values: Mapping[str, Any] = config
    request: dict[str, Any] = {"modelId": config.get("model_id"), "messages": _messages(config, call.messages)}
    if system := call.system_blocks:
        request["system"] = list(system)
    inference: dict[str, Any] = {name: values[key] for key, name in _INFERENCE.items() if values.get(key) is not None}
    if inference:
        request["inferenceConfig"] = inference
    if tools := _tools(call):
        request["toolConfig"] = {
            "tools": tools,
            **({"toolChoice": dict(call.tool_choice)} if call.tool_choice else {}),
        }
    if guardrail := _guardrail(config):
        request["guardrailConfig"] = guardrail
    for key, name in _ADDITIONAL.items():
        if values.get(key) is not None:
            request[name] = values[key]
    if tier := config.get("service_tier"):
        request["serviceTier"] = {"type": tier}
    return request | (config.get("additional_args") or {})


def counting_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `CountTokens` for the same conversation."""
    counted = ("messages", "system", "toolConfig", "additionalModelRequestFields")
    conversation = {key: request[key] for key in counted if key in request}
    return {"modelId": request["modelId"], "input": {"converse": conversation}}


def _messages(config: BedrockConfig, messages: Sequence[Message]) -> list[dict[str, Any]]:
    with_status = _sends_status(config)
    sent: list[dict[str, Any]] = []
    for message in messages:
        content = _content(message, with_status=with_status)
        if sent and sent[-1]["role"] == message["role"]:
            sent[-1]["content"] += content  # The service wants roles to alternate; a summary stands before a prompt.
        else:
            sent.append({"role": message["role"], "content": content})
    if config.get("guardrail_latest_message") and config.get("guardrail_id"):
        _guard_latest(sent)
    return sent


def _content(message: Message, *, with_status: bool) -> list[dict[str, Any]]:
    blocks = [_block(block, with_status=with_status) for block in message["content"]]
    return [block for block in blocks if "text" not in block or block["text"].strip()] or [{"text": BLANK_TEXT}]


def _block(block: Mapping[str, Any], *, with_status: bool) -> dict[str, Any]:
    if "toolUse" in block:
        use = block["toolUse"]
        return {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"], "input": input_of(use)}}
    if "toolResult" in block:
        result = block["toolResult"]
        sent = {"toolUseId": result["toolUseId"], "content": [_medium(each) for each in result["content"]]}
        return {"toolResult": sent | ({"status": result["status"]} if with_status and "status" in result else {})}
    return _medium(block)


def _medium(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block whose medium, if it is one, is where the service looks for it. Errors: `Invalid` for other places."""
    kind = block_kind(block)
    location = block[kind].get("source", {}).get("location") if kind in _MEDIA else None
    if location is None:
        return dict(block)
    if location.get("type") != "s3" or "uri" not in location:
        raise cannot_take(kind, "Bedrock", "its location is none in S3", location)
    place = {key: location[key] for key in ("uri", "bucketOwner") if key in location}
    return {kind: {**block[kind], "source": {"s3Location": place}}}


def _sends_status(config: BedrockConfig) -> bool:
    wanted = config.get("include_tool_result_status")
    return "anthropic.claude" in config.get("model_id", "") if wanted in (None, "auto") else bool(wanted)


def _guard_latest(sent: list[dict[str, Any]]) -> None:
    """Mark the text of the latest user message for the guardrail."""
    for message in reversed(sent):
        if message["role"] == "user" and any("text" in block for block in message["content"]):
            message["content"] = [
                {"guardContent": {"text": {"text": block["text"]}}} if "text" in block else block
                for block in message["content"]
            ]
            return


def _tools(call: ModelCall) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = [_tool(spec) for spec in call.tool_specs]
    return tools or ([_PLACEHOLDER_TOOL] if mentions_tools(call.messages) else [])


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    if "cachePoint" in spec:
        return dict(spec)
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {"toolSpec": {**described, "inputSchema": spec["inputSchema"]}}


def _guardrail(config: BedrockConfig) -> dict[str, Any]:
    identifier, version = config.get("guardrail_id"), config.get("guardrail_version")
    if not identifier or not version:
        return {}
    guardrail = {
        "guardrailIdentifier": identifier,
        "guardrailVersion": version,
        "trace": config.get("guardrail_trace") or "enabled",
    }
    mode = config.get("guardrail_stream_processing_mode")
    if mode and config.get("streaming") is not False:
        guardrail["streamProcessingMode"] = mode
    return guardrail
