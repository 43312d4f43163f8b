"""The offline model as the demonstration needs it: it can place orders, and it takes its time.

Without the pauses a turn would be over before anybody could kill the worker in the middle of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import anyio

from repertory.app.demo.orders import ORDER_TOOL
from repertory.backends.models.message_events import message_events
from repertory.backends.models.offline import OfflineModel
from repertory.backends.ports import Model, StreamEvent
from repertory.core.messages import text_of

if TYPE_CHECKING:
    from repertory.core.messages import Message, ToolSpec

_ORDER = re.compile(r"(?:please )?order (?P<item>.+?)[.!]?$", re.IGNORECASE)


class StallModel(Model):
    """Answers as `OfflineModel` does, with a pause before each event, and orders what it is asked to order."""

    def __init__(self, *, pause_s: float) -> None:
        self._pause_s = pause_s
        self._rules = OfflineModel()

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """The answer to the last message."""
        order = _ORDER.match(text_of(messages[-1])) if messages else None
        if order is not None:
            use = {"toolUseId": f"order_{uuid.uuid4().hex}", "name": ORDER_TOOL, "input": {"item": order["item"]}}
            for event in message_events([{"toolUse": use}]):
                await anyio.sleep(self._pause_s)
                yield event
            return
        async for event in self._rules.stream(messages, tool_specs, system_prompt, **options):
            await anyio.sleep(self._pause_s)
            yield event
