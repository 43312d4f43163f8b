"""A tool call that the program makes itself, as messages: what was asked for in its name, and that it was done.

Source: the texts are those of the SDK whose users we serve.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.answer import Answer
from repertory.core.messages import ContentBlock, Json, Message, ToolUse
from repertory.core.state import as_json
from repertory.errors import Invalid, TooLarge

if TYPE_CHECKING:
    from repertory.core.messages import Usage


DIRECT_WHILE_BUSY = (
    "Direct tool call cannot be made while the agent is in the middle of an invocation. "
    "Set record_direct_tool_call=False to allow direct tool calls during agent invocation."
)


def recorded(use: ToolUse) -> ToolUse:
    """The tool use with its arguments as JSON: a value that JSON cannot say is named by its type."""
    arguments = cast("Mapping[str, object]", use["input"])
    return {**use, "input": {name: _json_or_name(value) for name, value in arguments.items()}}


def direct_prompt(use: ToolUse, override: str | None) -> Message:
    """What the user is taken to have said about a recorded use; `override` stands first."""
    shown = json.dumps(use["input"], ensure_ascii=False)
    text = f"agent.tool.{use['name']} direct tool call.\nInput parameters: {shown}\n"
    blocks: list[ContentBlock] = [] if override is None else [{"text": f"{override}\n"}]
    return {"role": "user", "content": [*blocks, {"text": text}]}


def direct_answers(use: ToolUse) -> list[Answer]:
    """What the model is taken to have answered: the tool use, and after its result the end."""
    end = f"agent.tool.{use['name']} was called."
    return [_answer({"toolUse": use}, "tool_use"), _answer({"text": end}, "end_turn")]


def spoken_answer(text: str) -> Answer:
    """A text that takes the place of a model's answer."""
    return _answer({"text": text}, "end_turn")


def _answer(block: ContentBlock, stop_reason: str) -> Answer:
    usage: Usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    return Answer(
        message={"role": "assistant", "content": [block]},
        stop_reason=stop_reason,
        usage=usage,
        latency_ms=None,
        invalid_inputs={},
        truncated=False,
        redact_user=None,
    )


def _json_or_name(value: object) -> Json:
    try:
        return as_json(value)
    except TooLarge:
        return f"<<too large to be recorded: {type(value).__qualname__}>>"
    except Invalid:
        return f"<<non-serializable: {type(value).__qualname__}>>"
