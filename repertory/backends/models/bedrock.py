"""Models on Amazon Bedrock, through Converse and ConverseStream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
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
    unread_answer,
)
from repertory.backends.models.answer_reader import AnswerReader
from repertory.backends.models.bedrock_answers import ConverseReader, events_of_whole
from repertory.backends.models.bedrock_families import reasoning_provider
from repertory.backends.models.bedrock_request import bedrock_rules, converse_request, counting_request
from repertory.backends.models.caching import CacheConfig, CacheToolsConfig
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.provider import (
    NONSENSE,
    CountingConfig,
    ModelCall,
    ProviderModel,
    is_overflow,
    model_call,
    release,
    retry_after_s,
)
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)

if TYPE_CHECKING:
    from repertory.core.converse import RedactContentEvent, StreamEvent
    from repertory.core.messages import Message, ToolSpec

BEDROCK = AwsService(name="bedrock-runtime", wanted_by="BedrockModel", extra="bedrock")
DEFAULT_MODEL_ID = "global.anthropic.claude-sonnet-4-6"


class BedrockConfig(CountingConfig, total=False):
    """Settings of a `BedrockModel`. A field that is missing or None is left to the service."""

    model_id: str
    """A model id, an inference profile, or an ARN."""
    streaming: bool | None
    """True for ConverseStream (the default), False for Converse."""
    temperature: float | None
    max_tokens: int | None
    top_p: float | None
    stop_sequences: list[str] | None
    cache_config: CacheConfig | None
    """The settings for the parts of a request that the service is asked to cache; `auto` means the Claude models."""
    cache_prompt: str | None
    """The type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | CacheToolsConfig | None
    """The type of the cache point after the tools."""
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
    strict_tools: bool | None
    """True if the service holds the model to the schemas of the tools, whose objects then have no further fields."""
    service_tier: str | None
    additional_request_fields: dict[str, Any] | None
    additional_response_field_paths: list[str] | None
    additional_args: dict[str, Any] | None
    """Request parameters that are added unchanged."""


class AwsModel(ProviderModel):
    """A model that is asked through aiobotocore."""

    def _errors(self) -> tuple[type[Exception], ...]:
        return (*bedrock_errors(), *NONSENSE)

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        if isinstance(error, bedrock_errors()):
            return from_bedrock_error(error, self._service)
        return ModelFailed(f"the model's answer cannot be read: {error}")


class BedrockModel(AwsModel):
    """A model on Amazon Bedrock. Building one connects to nothing.

    Credentials and region come from the arguments, else from the environment and `~/.aws` as in every AWS tool; they
    are looked up at the first call. Many agents may use one model at once, from several event loops; each loop has its
    own connections, released by `aclose` in that loop.

    botocore's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        model: The model's id; None for the default, or for `model_id=` in `config`.
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
    _defaults = BedrockConfig(model_id=DEFAULT_MODEL_ID)
    _service = "Bedrock"

    def __init__(
        self,
        model: str | None = None,
        /,
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
        settings = AwsSettings(
            region_name=region_name,
            boto_session=boto_session,
            endpoint_url=endpoint_url,
            boto_client_config=boto_client_config,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        super().__init__(model, config, aws_clients(BEDROCK, settings))

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
            tool_choice: The tool that the model has to use; None: any or none.
            dynamic_trailing_blocks: The number of last content blocks that change with each call, so no cache point
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
        return events_of_whole(response, reasoning_provider(str(self._config.get("model_id") or "")))

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return bedrock_rules(config)

    def _request(self, call: ModelCall) -> tuple[dict[str, Any], bool]:
        return converse_request(call), call.config.get("streaming") is not False

    def _reader(self, call: ModelCall) -> GuardedReader:
        return GuardedReader(call.config)

    async def _ask(self, client: Any, request: tuple[dict[str, Any], bool]) -> Any:
        arguments, streaming = request
        if streaming:
            return framed_events((await client.converse_stream(**arguments))["stream"])
        return await client.converse(**arguments)

    async def _count(self, client: Any, call: ModelCall) -> int:
        return int((await client.count_tokens(**counting_request(converse_request(call))))["inputTokens"])


class GuardedReader(AnswerReader):
    """Reads one answer, and adds a guardrail's verdict on it. Errors: `ModelStreamBroken` when the end never came."""

    __slots__ = ("_config", "_is_judged", "_reader", "_stop_reason", "_stopped")

    def __init__(self, config: BedrockConfig) -> None:
        super().__init__(reasoning_provider(config.get("model_id") or ""))
        self._config = config
        self._reader = ConverseReader(self._provider)
        self._stopped = self._is_judged = False
        self._stop_reason: str | None = None

    def feed(self, piece: Any) -> Iterable[StreamEvent]:
        delta = piece.get("contentBlockDelta")
        if delta is not None and "text" in delta.get("delta", ()):
            return (piece,)  # An answer mostly consists of these; they need no reading.
        return self._judged(piece, self._reader.feed(piece))

    def whole(self, answer: Any) -> Iterable[StreamEvent]:
        for event in events_of_whole(answer, self._provider):
            yield from self._judged(event, (event,))

    def finish(self) -> Iterable[StreamEvent]:
        if not self._stopped:
            raise ModelStreamBroken("Bedrock ended the stream in the middle of an answer")
        # Without metadata nothing says which side was blocked, so the input counts as blocked.
        if not self._is_judged and (verdict := redaction(self._config, self._stop_reason, {})):
            yield verdict

    def _judged(self, piece: StreamEvent, events: Iterable[StreamEvent]) -> Iterable[StreamEvent]:
        yield from events
        if "messageStop" in piece:
            self._stopped = True
            self._stop_reason = piece["messageStop"].get("stopReason")
        if "metadata" in piece:
            self._is_judged = True
            if verdict := redaction(self._config, self._stop_reason, piece["metadata"]):
                yield verdict


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
        if frame.headers.get(":event-type") == "contentBlockStart" and json.loads(frame.payload).get("start") == {}:
            return {}  # The start of a block that is known by its first piece says nothing.
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
            return ModelFailed(f"{NO_REGION}. Amazon Bedrock is asked where no other model is given.")
        case boto.HTTPClientError() | httpx2.DecodingError() if reason := unread_answer(error):
            return ModelFailed(f"{service}'s answer is not read: {reason}")
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
