"""What the model says of itself, and having it count what it is about to be shown."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from repertory.actors.conversation_messages import Counted
from repertory.errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.backends.ports import Model
    from repertory.core.messages import Message
    from repertory.core.window.gauge import Beside

_log = logging.getLogger("repertory.conversation")


def told_by(model: Model) -> tuple[int | None, bool]:
    """Its window in tokens, and whether it counts. Errors: `ModelFailed` when its own code fails."""
    try:
        return model.context_window_limit, model.counts_tokens
    except Exception as error:
        raise ModelFailed("the model cannot say how it is set", model=type(model).__name__) from error


async def counted(model: Model, messages: Sequence[Message], beside: Beside) -> Counted:
    """What the model counts, if it can."""
    try:
        return Counted(tokens=await model.count_tokens(messages, beside.tool_specs, beside.system_prompt))
    except Exception as error:  # noqa: BLE001 - A model may be anybody's code; the estimate stays.
        _log.warning("the model did not count", exc_info=error)
        return Counted(tokens=None)
