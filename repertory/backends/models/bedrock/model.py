"""Models on Amazon Bedrock, through Converse and ConverseStream."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack, cast

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.models.bedrock.client import bedrock_clients
from repertory.backends.models.bedrock.errors import NONSENSE, foreign_errors, from_foreign
from repertory.backends.models.bedrock.request import BedrockConfig, converse_request, counting_request
from repertory.backends.models.call_options import SystemBlocks, call_options, changed, system_text
from repertory.backends.models.message_events import message_events
from repertory.backends.models.release import release
from repertory.backends.ports import Model, StreamEvent
from repertory.core.tokens import estimate_tokens
from repertory.errors import ModelFailed, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

DEFAULT_MODEL_ID = "global.anthropic.claude-sonnet-4-6"

_log = logging.getLogger("repertory.models")


class BedrockModel(Model):
    """A model on Amazon Bedrock. Building one connects to nothing.

    Credentials and region come from the arguments, else from the environment and `~/.aws` as in every AWS tool; they
    are looked up at the first call. One model may be used by many agents at once and from several event loops; each
    loop has its own connections, released by `aclose` in that loop.

    Errors: `Throttled` and `Unavailable` (call again later), `ModelStreamBroken` (call again),
    `ContextWindowOverflowException` (shorten), `ModelFailed` (refused, not allowed, no credentials or region, nonsense:
    the message says what to set). botocore's own retries are off, so that whoever calls decides about them.
    Cancellation: closing the stream early releases its connection.
    """

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
        """`config` is documented field by field at `BedrockConfig`; a name that is not there is a `TypeError`.

        `boto_session` is a boto3, botocore or aiobotocore session to take credentials and region from, and
        `boto_client_config` a botocore `Config` that is laid over ours. `read_timeout_s` bounds the time between two
        pieces of an answer, not the whole answer.
        """
        if region_name is not None and boto_session is not None:
            msg = "region_name and boto_session exclude each other: the session has a region"
            raise ValueError(msg)
        start: BedrockConfig = {"model_id": DEFAULT_MODEL_ID}
        self._config = changed("BedrockModel", BedrockConfig, start, config)
        self._clients = bedrock_clients(
            AwsSettings(
                region_name=region_name,
                boto_session=boto_session,
                endpoint_url=endpoint_url,
                boto_client_config=boto_client_config,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
            )
        )

    def get_config(self) -> Mapping[str, Any]:
        """The settings, as given."""
        return dict(self._config)

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. `TypeError` names the ones that do not exist."""
        self._config = changed("BedrockModel", BedrockConfig, self._config, settings)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. `options`: see `call_options`, and settings for this call only."""
        asked = call_options(options)
        config = changed("BedrockModel", BedrockConfig, self._config, asked.settings)
        request = converse_request(config, messages, tool_specs, system_prompt, asked)
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
        except foreign_errors() as error:
            raise from_foreign(error) from error

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: SystemBlocks | None = None,
    ) -> int:
        """Tokens that these would take: counted by the service when `use_native_token_count` is set, else estimated.

        A service that does not answer, or cannot count for this model, is no error: then it is the estimate.
        """
        if self._config.get("use_native_token_count"):
            options = call_options({"system_prompt_content": system_prompt_content})
            request = counting_request(converse_request(self._config, messages, tool_specs, system_prompt, options))
            try:
                return int((await (await self._clients.get()).count_tokens(**request))["inputTokens"])
            except (*foreign_errors(), *NONSENSE) as error:
                _log.info("tokens not counted but estimated", exc_info=error, extra={"service": "Bedrock"})
        return estimate_tokens(messages, tool_specs, system_text(system_prompt, system_prompt_content))

    async def aclose(self) -> None:
        """Release the connections of the running event loop."""
        await self._clients.aclose()

    async def _ask(self, request: dict[str, Any], *, streaming: bool) -> AsyncGenerator[StreamEvent, None]:
        client = await self._clients.get()
        try:
            if streaming:
                response = await client.converse_stream(**request)
                return converse_events(response["stream"])
            return _whole_answer(await client.converse(**request))
        except NONSENSE as error:
            raise ModelFailed(f"the model's answer cannot be read: {error}") from error


async def _whole_answer(response: Mapping[str, Any]) -> AsyncGenerator[StreamEvent, None]:
    """The answer of Converse as the events that ConverseStream would have sent."""
    message = response.get("output", {}).get("message")
    stop_reason = response.get("stopReason")
    if not message or not isinstance(stop_reason, str):
        raise ModelFailed("the model answered without a message", response=sorted(response))
    for event in message_events(message.get("content", ()), stop_reason=stop_reason):
        yield event
    yield {"metadata": {key: response[key] for key in ("usage", "metrics", "trace") if key in response}}


# What a guardrail's verdict means for the conversation: which of the two messages is to be replaced.
#
# Pure. The trace of the answer tells whether the input or the output was blocked. Without a trace nobody can tell, so
# blocked then means the input too: keeping a text that was refused is worse than hiding one that was not.

INTERVENED = "guardrail_intervened"
"""The stop reason of an answer that a guardrail has replaced."""
REDACTED_INPUT = "[User input redacted.]"
REDACTED_OUTPUT = "[Assistant output redacted.]"


def redaction(config: BedrockConfig, stop_reason: str | None, metadata: Mapping[str, Any]) -> StreamEvent | None:
    """The `redactContent` event that a blocked answer calls for, None when nothing is to be replaced."""
    if stop_reason != INTERVENED:
        return None
    trace = metadata.get("trace", {}).get("guardrail")
    body: dict[str, str] = {}
    if config.get("guardrail_redact_input") is not False and (not trace or _blocked(trace.get("inputAssessment"))):
        body["redactUserContentMessage"] = config.get("guardrail_redact_input_message") or REDACTED_INPUT
    if config.get("guardrail_redact_output") and (not trace or _blocked(trace.get("outputAssessments"))):
        body["redactAssistantContentMessage"] = config.get("guardrail_redact_output_message") or REDACTED_OUTPUT
    return {"redactContent": body} if body else None


def _blocked(assessment: object) -> bool:
    """Whether anything in the assessment was found and blocked, however deep it stands."""
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
    response = stream._raw_stream  # the httpx response; aiobotocore offers no public way to it
    chunks: AsyncGenerator[bytes, None] = response.aiter_raw()
    frames = import_module("botocore.eventstream").EventStreamBuffer()
    stopped = False
    try:
        async for chunk in chunks:
            frames.add_data(chunk)
            for frame in frames:
                event = await _parsed(stream, frame)
                stopped = stopped or "messageStop" in event
                if event:
                    yield event
    finally:
        await release(chunks, response.aclose, foreign_errors())
    if not stopped:
        raise ModelStreamBroken("Bedrock ended the stream in the middle of an answer")


async def _parsed(stream: Any, frame: Any) -> StreamEvent:
    """One frame as an event; empty when the service model does not know it."""
    try:
        return await stream._parse_event(frame) or {}
    except (import_module("botocore.parsers").ResponseParserError, *NONSENSE) as error:
        raise ModelFailed("malformed model event", event=frame.headers.get(":event-type"), reason=str(error)) from error
