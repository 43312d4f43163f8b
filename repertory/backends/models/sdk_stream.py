"""Asking through an official SDK: one call, its answer read piece by piece, its errors turned into ours.

The SDK knows where to ask, with which key, and what a refusal is. What the service then sends is read and judged here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from repertory.backends.models.release import release
from repertory.backends.models.sdk_errors import foreign_errors, from_foreign, is_error, told_error
from repertory.backends.models.server_sent import server_sent
from repertory.core.stream_event import mapping

if TYPE_CHECKING:
    from repertory.backends.models.sdk_client import Service
    from repertory.backends.ports import StreamEvent

Call = Callable[[], Awaitable[Any]]


class AnswerReader(Protocol):
    """Turns one answer of a service into events of ours. Errors: `ModelFailed` for nonsense."""

    def feed(self, piece: Mapping[str, object], /) -> Iterator[StreamEvent]:
        """The events that the next piece of a stream brings."""
        ...

    def whole(self, answer: Mapping[str, object], /) -> Iterator[StreamEvent]:
        """The events of an answer that came at once."""
        ...

    def finish(self) -> Iterator[StreamEvent]:
        """The events that close the answer. `ModelStreamBroken` when its end never came."""
        ...


async def ask(service: Service, call: Call) -> Any:
    """What the SDK answers. Errors are ours."""
    try:
        return await call()
    except foreign_errors(service) as error:
        raise from_foreign(service, error, answering=False) from error


async def whole_events(service: Service, call: Call, reader: AnswerReader) -> AsyncGenerator[StreamEvent, None]:
    """The events of a call that is answered at once."""
    answer = await ask(service, call)
    for event in reader.whole(mapping(as_plain(answer), "answer", "answer")):
        yield event
    for event in reader.finish():
        yield event


async def streamed_events(service: Service, call: Call, reader: AnswerReader) -> AsyncGenerator[StreamEvent, None]:
    """The events of a call that is answered by a stream. Closing the generator releases the connection."""
    stream = await ask(service, call)
    try:
        async with aclosing(_pieces(service, stream)) as pieces:
            async for piece in pieces:
                said = mapping(as_plain(piece), "stream", "piece")
                if is_error(said):
                    raise told_error(service, said)
                for event in reader.feed(said):
                    yield event
    except foreign_errors(service) as error:
        raise from_foreign(service, error, answering=True) from error
    for event in reader.finish():
        yield event


def _pieces(service: Service, stream: Any) -> AsyncGenerator[object, None]:
    """The SDK's own stream is read from its response; one that somebody has wrapped is left to its wrapper."""
    errors = foreign_errors(service)
    if type(stream) is import_module(service.package).AsyncStream:
        return server_sent(stream.response, errors)
    return _wrapped(stream, errors)


async def _wrapped(stream: Any, errors: tuple[type[Exception], ...]) -> AsyncGenerator[object, None]:
    pieces = aiter(stream)
    try:
        async for piece in pieces:
            yield piece
    finally:
        await release(pieces, stream.close, errors)


def as_plain(answer: object) -> object:
    """What the service sent, as JSON has it. Fields that the SDK does not know are there too."""
    dump = getattr(answer, "model_dump", None)
    return answer if dump is None else cast("object", dump(exclude_unset=True, warnings=False))
