"""Readers of answers: the blocks of one answer as events of ours, the same for every service. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStart, MetadataEvent, Responder, StreamEvent
    from repertory.core.messages import Usage

Voice = Literal["text", "reasoning"]


class AnswerReader:
    """Translates one answer of a service into our events. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when
    the end never came.

    A class for a service says what its pieces mean (`feed`, `finish`); the numbers of blocks, their beginnings and
    their ends are kept here.
    """

    __slots__ = ("_blocks", "_provider", "_reasoning_start", "_spoken", "_started", "_voice")

    def __init__(self, provider: str, reasoning_provider: str | None = None) -> None:
        """`provider`: whose answer it is, which marks its parts; and its reasoning, unless that is another's."""
        self._provider = provider
        self._reasoning_start: Mapping[str, object] = {"reasoningContent": {"provider": reasoning_provider or provider}}
        self._started = False
        self._blocks = 0
        """The number of blocks that have started."""
        self._voice: Voice | None = None
        """The kind of the open block, text or reasoning; None when none is open."""
        self._spoken = 0
        """The index of the open block."""

    def feed(self, piece: Any, /) -> Iterable[StreamEvent]:
        """Our events for the next piece of a stream."""
        raise NotImplementedError

    def whole(self, answer: Any, /) -> Iterable[StreamEvent]:
        """Our events for an answer that came whole: by default, read as its only piece."""
        return self.feed(answer)

    def ended(self) -> None:
        """Take the end mark of a stream (`[DONE]`)."""

    def finish(self) -> Iterable[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        raise NotImplementedError

    def _begin_message(self) -> Iterator[StreamEvent]:
        """The start of the message, once."""
        if not self._started:
            self._started = True
            yield {"messageStart": {"role": "assistant"}}

    def _speak(self, voice: Voice, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A piece of text or reasoning, in the open block if that is of this kind."""
        if self._voice != voice:
            yield from self._begin(voice)
        yield block_delta(self._spoken, delta)

    def _begin(self, voice: Voice) -> Iterator[StreamEvent]:
        yield from self._fall_silent()
        self._voice, self._spoken = voice, self._next_block()
        yield block_start(self._spoken, self._reasoning_start if voice == "reasoning" else {})

    def _fall_silent(self) -> Iterator[StreamEvent]:
        """End the open block, if there is one."""
        if self._voice is not None:
            self._voice = None
            yield block_stop(self._spoken)

    def _next_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _block(self, start: Mapping[str, object], *deltas: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A block with all that is in it."""
        index = self._next_block()
        yield block_start(index, start)
        for delta in deltas:
            yield block_delta(index, delta)
        yield block_stop(index)

    def _part(self, content: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A part of the answer in the service's own form."""
        return self._block({"providerContent": {"provider": self._provider}}, {"providerContent": {"content": content}})


def block_start(index: int, start: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": cast("ContentBlockStart", start)}}


def block_delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": cast("ContentBlockDelta", delta)}}


def block_stop(index: int) -> StreamEvent:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def metadata_event(usage: Mapping[str, int], answer_id: object = None, model: object = None) -> MetadataEvent:
    """The usage of an answer, with the names that the provider has given to it and to its model, as far as it has."""
    found: MetadataEvent = {"usage": cast("Usage", usage)}
    names = {"id": answer_id, "model": model}
    known = {key: name for key, name in names.items() if isinstance(name, str) and name}
    if known:
        found["response"] = cast("Responder", known)
    return found


def token_count(value: object) -> int:
    """The number of tokens that a service names; 0 for anything else."""
    return value if isinstance(value, int) and value > 0 else 0
