"""A model with scripted replies: for tests, examples and benchmarks, without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from repertory.backends.ports import Model
from repertory.core.answer import Split, message_events, whole
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid, LimitReached

if TYPE_CHECKING:
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import ContentBlock, Message, ToolSpec, Usage

ScriptedReply: TypeAlias = (
    "str | dict[str, Any] | Sequence[dict[str, Any]] | BaseException | type[BaseException] | ReplyFunction"
)
"""Text, one content block, several content blocks, an error to raise, or a function that decides; also
`{"content": [...], "stopReason": "pause_turn"}`, for an answer with a stop reason of its own.

In a tool use block `toolUseId` and `input` may be left out.
"""
ReplyFunction: TypeAlias = "Callable[[Sequence[Message], Sequence[ToolSpec] | None, str | None], ScriptedReply]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A recorded call. The list is a copy; the messages in it are those of the call."""

    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec] | None
    system_prompt: str | None


class ScriptedModel(Model):
    """A model that gives its replies in order, one per call.

    Tool use ids that a reply leaves out are `tooluse_1`, `tooluse_2`, ... over the life of the model. Usage is an
    estimate. A call takes its reply when its stream is first read.

    Errors: what a reply says. A stream that is closed early has used its reply up.

    Args:
        replies: The answers in order: texts, content blocks, errors to raise, or functions that return one of these.
        delay_s: Seconds before each event of the stream.
        chunk: Characters of each piece of a text; None sends it whole.
        loop: True repeats the last answer when all are used up.

    Raises:
        LimitReached: When the replies are used up and `loop` is off. Give more replies.
        Invalid: For a reply that is none of the kinds above. Correct the argument.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply] | str,
        *,
        delay_s: float = 0.0,
        chunk: int | None = None,
        loop: bool = False,
    ) -> None:
        """Pause `delay_s` before each event, send `chunk` characters per delta (None: all), `loop` the last reply."""
        if chunk is not None and chunk < 1:
            raise Invalid("chunk is a number of characters, at least 1, or None", chunk=chunk)
        self._replies: Sequence[ScriptedReply] = [replies] if isinstance(replies, str) else list(replies)
        self._delay_s = delay_s
        self._split = _split_by(chunk)
        self._loop = loop
        self._given = 0
        self._tool_uses = 0
        self._tokens = _TokenCounter()
        self.calls: list[ScriptedCall] = []
        """The recorded calls, in order."""

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """The next reply as a well-formed stream."""
        self.calls.append(ScriptedCall(messages=list(messages), tool_specs=tool_specs, system_prompt=system_prompt))
        reply, stop_reason = _parted(self._next_reply(messages, tool_specs, system_prompt))
        blocks = [self._with_id(block) for block in _blocks(reply)]
        for event in message_events(blocks, stop_reason=stop_reason, split=self._split):
            if self._delay_s:
                await _sleep(self._delay_s)
            yield event
        yield _metadata(self._tokens.asked(messages, tool_specs, system_prompt), blocks)

    def _next_reply(
        self, messages: Sequence[Message], tool_specs: Sequence[ToolSpec] | None, system_prompt: str | None
    ) -> object:
        position = self._given
        if position >= len(self._replies):
            if not self._loop or not self._replies:
                raise LimitReached("the script has no reply left", replies=len(self._replies), call=position + 1)
            position = len(self._replies) - 1
        self._given += 1
        reply = self._replies[position]
        while callable(reply) and not isinstance(reply, type):
            reply = reply(messages, tool_specs, system_prompt)
        return reply

    def _with_id(self, block: ContentBlock) -> ContentBlock:
        if "toolUse" not in block:
            return block
        use = cast("Mapping[str, Any]", block["toolUse"])
        if "toolUseId" in use and "input" in use:
            return block
        if "toolUseId" not in use:
            self._tool_uses += 1
        return cast("ContentBlock", {"toolUse": {"toolUseId": f"tooluse_{self._tool_uses}", "input": {}, **use}})


def _parted(reply: object) -> tuple[object, str | None]:
    """The content of a reply, and the stop reason that it names; None if it names none."""
    if not isinstance(reply, dict) or "stopReason" not in reply:
        return cast("object", reply), None
    fields = cast("Mapping[str, object]", reply)
    return fields.get("content"), str(fields["stopReason"])


def _blocks(reply: object) -> list[ContentBlock]:
    """The reply as content blocks. Raises a scripted error; an invalid reply is `Invalid`."""
    if isinstance(reply, BaseException):
        raise reply.with_traceback(None)
    if isinstance(reply, type) and issubclass(reply, BaseException):
        raise reply
    if isinstance(reply, str):
        return [{"text": reply}]
    if isinstance(reply, dict):
        return [_block(cast("object", reply))]
    if isinstance(reply, list | tuple):
        return [_block(block) for block in cast("Sequence[object]", reply)]
    raise Invalid("a reply is text, content blocks, an error or a function", got=type(cast("object", reply)).__name__)


def _block(block: object) -> ContentBlock:
    match block:
        case {"text": str()} | {"toolUse": {"name": str()}} | {"reasoningContent": {}}:
            return cast("ContentBlock", block)
        case {"providerContent": {"provider": str(), "content": {}}} | {"citationsContent": {"content": list()}}:
            return cast("ContentBlock", block)
        case {"image": {"format": str()}} | {"audio": {"format": str()}} | {"video": {"format": str()}}:
            return cast("ContentBlock", block)
        case _:
            raise Invalid("a reply's block is one of an answer, such as text, toolUse or image", got=repr(block)[:200])


def _split_by(chunk: int | None) -> Split:
    if chunk is None:
        return whole
    return lambda text: [text[start : start + chunk] for start in range(0, len(text), chunk)]


def _metadata(input_tokens: int, blocks: list[ContentBlock]) -> StreamEvent:
    output_tokens = estimate_tokens([{"role": "assistant", "content": blocks}])
    total_tokens = input_tokens + output_tokens
    usage: Usage = {"inputTokens": input_tokens, "outputTokens": output_tokens, "totalTokens": total_tokens}
    return {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


class _TokenCounter:
    """Remembers the estimates of the last call, so that the messages of a growing or sliding conversation are not
    counted again.

    Messages are recognised by the identity of their content, since each request has messages of its own. Only the first
    and last are compared: this is an estimate.
    """

    __slots__ = ("_counts", "_rest", "_rest_tokens", "_seen", "_total")

    def __init__(self) -> None:
        self._seen: list[list[ContentBlock]] = []
        self._counts: list[int] = []
        self._total = 0
        self._rest: tuple[Sequence[ToolSpec] | None, str | None] = (None, None)
        self._rest_tokens = 0

    def asked(
        self, messages: Sequence[Message], tool_specs: Sequence[ToolSpec] | None, system_prompt: str | None
    ) -> int:
        if self._rest[0] is not tool_specs or self._rest[1] is not system_prompt:
            self._rest = (tool_specs, system_prompt)
            self._rest_tokens = estimate_tokens((), tool_specs, system_prompt)
        self._forget_all_but(messages)
        for message in messages[len(self._seen) :]:
            tokens = estimate_tokens((message,))
            self._seen.append(message["content"])
            self._counts.append(tokens)
            self._total += tokens
        return self._rest_tokens + self._total

    def _forget_all_but(self, messages: Sequence[Message]) -> None:
        """Keep the range of known messages with which these begin."""
        first = messages[0]["content"] if messages else None
        gone = next((position for position, seen in enumerate(self._seen) if seen is first), len(self._seen))
        self._total -= sum(self._counts[:gone])
        del self._seen[:gone], self._counts[:gone]
        known = len(self._seen)
        if known and (known > len(messages) or messages[known - 1]["content"] is not self._seen[-1]):
            self._seen, self._counts, self._total = [], [], 0


async def _sleep(delay_s: float) -> None:
    import anyio  # here, so that building a script does not load an event loop

    await anyio.sleep(delay_s)
