"""A model with a guardrail: it answers what it was given, and may want what was said replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from repertory import Model
from repertory.core.messages import Message


@dataclass(frozen=True)
class Verdict:
    """An answer that a guardrail stopped."""

    streamed: str = "blocked"
    """What was sent before the guardrail said so."""
    user: str | None = None
    """What is to stand in the place of what the user said."""
    assistant: str | None = None
    """The same for the answer."""


class GuardedModel(Model):
    """Answers in order: a text, a tool use or a `Verdict`. `asked` keeps what it was shown."""

    def __init__(self, *replies: str | Verdict | dict[str, Any], pause: Callable[[], Awaitable[None]] | None = None):
        """`pause` is awaited before the end of each answer."""
        self.replies = list(replies)
        self.asked: list[list[Message]] = []
        self._pause = pause

    async def stream(
        self, messages: Sequence[Message], tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(list(messages))
        reply = self.replies.pop(0)
        stop_reason = "end_turn"
        if isinstance(reply, dict):
            stop_reason = "tool_use"
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": reply["id"], "name": reply["name"]}}}}
        else:
            text = reply if isinstance(reply, str) else reply.streamed
            yield {"contentBlockDelta": {"delta": {"text": text}}}
        yield {"contentBlockStop": {}}
        if self._pause is not None:
            await self._pause()
        if isinstance(reply, Verdict):
            stop_reason = "guardrail_intervened"
        yield {"messageStop": {"stopReason": stop_reason}}
        if isinstance(reply, Verdict):
            said = {"redactUserContentMessage": reply.user, "redactAssistantContentMessage": reply.assistant}
            yield {"redactContent": {key: text for key, text in said.items() if text is not None}}
