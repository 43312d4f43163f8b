"""ConverseStream over httpx: the frames of an answer as events.

aiobotocore reads event streams through `response.content.iter_chunks()`, which aiohttp has and httpx has not. Here the
bytes come from httpx's `aiter_raw()`, botocore's `EventStreamBuffer` cuts them into frames, and aiobotocore's parser
turns frames into events by the service model. One generator holds the connection, so closing it releases it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from repertory.backends.models.bedrock_errors import NONSENSE, foreign_errors
from repertory.backends.models.release import release
from repertory.errors import ModelFailed, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.backends.ports import StreamEvent


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
