"""Messages as text for a terminal. What a model or a tool said cannot move the cursor or change colours."""

from __future__ import annotations

import json
from collections.abc import Iterator

from repertory.core.interrupts import Interrupt
from repertory.core.messages import Message, ToolResult, ToolUse

SHORT = 100
"""Characters of a tool's input or result that are shown."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """The text with every control character but line break and tab spelled out."""
    return text.translate(_CONTROLS)


def shortened(text: str, characters_max: int = SHORT) -> str:
    """The text on one line, cut with three dots when it is longer."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= characters_max else f"{line[: characters_max - 3]}..."


def tool_use_line(use: ToolUse) -> str:
    """`name(argument="value")`, shortened."""
    given = use["input"]
    if isinstance(given, dict):
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    else:
        arguments = json.dumps(given, ensure_ascii=False)
    return f"{harmless(use['name'])}({shortened(arguments)})"


def tool_result_line(result: ToolResult) -> str:
    """What the tool answered, shortened, and whether it failed."""
    text = shortened(" ".join(_part_text(part) for part in result["content"])) or "(nothing)"
    return text if result.get("status") != "error" else f"failed: {text}"


def interrupt_line(interrupt: Interrupt) -> str:
    """What an interrupt is about."""
    match interrupt.reason:
        case {"tool": str(name), "toolUseId": str(use_id), "input": given}:
            return tool_use_line({"toolUseId": use_id, "name": name, "input": given})
        case None:
            return harmless(interrupt.name)
        case reason:
            return f"{harmless(interrupt.name)}: {shortened(json.dumps(reason, ensure_ascii=False))}"


def message_lines(message: Message) -> Iterator[str]:
    """A message line by line: its text whole, its tool uses and results shortened, other blocks by their kind."""
    for block in message["content"]:
        if "text" in block:
            yield from harmless(block["text"]).splitlines()
        elif "toolUse" in block:
            yield f"-> {tool_use_line(block['toolUse'])}"
        elif "toolResult" in block:
            yield f"<- {tool_result_line(block['toolResult'])}"
        else:
            yield f"({', '.join(block)})"


def _part_text(part: dict[str, object]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else json.dumps(part.get("json", list(part)), default=str, ensure_ascii=False)
