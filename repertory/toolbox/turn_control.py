"""Tools by which the model waits, ends its turn, or asks the user."""

from __future__ import annotations

import math
from typing import Any

import anyio

from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid

DEFAULT_MAX_DURATION = 60.0
"""Seconds that `sleep` waits at most."""
DEFAULT_MAX_MESSAGE_LENGTH = 4096
"""Characters of the last message of `stop`."""
HANDOFF_INTERRUPT_NAME = "strands:handoff-to-user"
"""The name of the interrupt by which `handoff_to_user` asks, whatever the tool is called."""
DEFAULT_STOP_DESCRIPTION = (
    "End the conversation's turn once nothing is left to do, with an optional last message to the user. "
    "Other tools that you asked for at the same time still end."
)
DEFAULT_HANDOFF_TO_USER_DESCRIPTION = (
    "Ask the user something and wait for the answer, which is the result. Only for what the user alone can decide or "
    "know, without which you cannot go on; not for progress reports and not for your final answer."
)
_STOPPED = "Agent loop stopped."


def sleep_description(max_duration: float) -> str:
    """The description for the model of a `sleep` with this bound, in seconds."""
    return f"Wait for some seconds, at most {max_duration}, before you go on. It ends early if the call is cancelled."


SLEEP_DESCRIPTION = sleep_description(DEFAULT_MAX_DURATION)


def make_sleep(
    *, max_duration: float = DEFAULT_MAX_DURATION, name: str = "sleep", description: str | None = None
) -> FunctionTool[Any]:
    """The tool `sleep(duration)`. `max_duration`: seconds. Errors: `Invalid` for a bound that is no positive number."""
    most = _seconds(max_duration, "max_duration")
    if not most:
        raise Invalid("max_duration must be positive", got=max_duration)

    @tool(name=name, description=description or sleep_description(most), effects=False, idempotent=True)
    async def sleep_tool(duration: float) -> str:
        """Wait.

        Args:
            duration: Seconds.
        """
        seconds = _seconds(duration, "duration")
        if seconds > most:
            raise Invalid(f"duration exceeds maximum of {most} seconds", got=duration)
        await anyio.sleep(seconds)
        return f"Slept for {duration} seconds"

    return sleep_tool


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{name} must be a number", got=value)
    if not math.isfinite(value):
        raise Invalid(f"{name} must be a positive and finite number", got=value)
    if value < 0:
        raise Invalid(f"{name} must be positive or zero: non-negative", got=value)
    return float(value)


def make_stop(
    *,
    name: str = "stop",
    description: str = DEFAULT_STOP_DESCRIPTION,
    max_message_length: int = DEFAULT_MAX_MESSAGE_LENGTH,
) -> FunctionTool[Any]:
    """The tool `stop(message)`: the turn ends when the tools of this step have ended, with stop reason `cancelled` and
    the message as its answer. Errors: `Invalid` for a length that is no positive number.
    """
    if type(max_message_length) is not int or max_message_length <= 0:
        raise Invalid("max_message_length must be a positive integer", got=max_message_length)

    @tool(name=name, description=description, effects=False, idempotent=True)
    async def stop_tool(tool_context: ToolContext, message: str | None = None) -> str:
        """End the turn.

        Args:
            message: What to say last.
        """
        _check_text(message or "")
        last = message or _STOPPED
        if len(last) > max_message_length:
            raise Invalid(f"`message` exceeds the maximum of {max_message_length} characters", got=len(last))
        tool_context.agent.cancel(message=last, after_current_tools=True)
        return last

    return stop_tool


def _check_text(message: object) -> None:
    if not isinstance(message, str):
        raise Invalid("`message` must be a string", got=message)


def make_handoff_to_user(
    *, name: str = "handoff_to_user", description: str = DEFAULT_HANDOFF_TO_USER_DESCRIPTION
) -> FunctionTool[Any]:
    """The tool `handoff_to_user(message)`: an interrupt named `HANDOFF_INTERRUPT_NAME`, with the message as its reason.
    The answer is the result.
    """

    @tool(name=name, description=description, effects=False, idempotent=True)
    async def handoff_to_user_tool(tool_context: ToolContext, message: str) -> Any:
        """Ask the user.

        Args:
            message: What the user is asked.
        """
        _check_text(message)
        if not message.strip():
            raise Invalid("`message` must not be empty")
        return tool_context.interrupt(HANDOFF_INTERRUPT_NAME, reason=message)

    return handoff_to_user_tool


sleep = make_sleep()
stop = make_stop()
handoff_to_user = make_handoff_to_user()
