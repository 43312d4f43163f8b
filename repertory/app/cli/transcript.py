"""Messages as text for a terminal. What a model or a tool said cannot move the cursor, change colours, or look like
something else: characters that reverse the direction of text, or that nobody sees, are spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from repertory.core.interrupts import Interrupt
from repertory.core.messages import Message, ToolResult, ToolUse

SHORT = 100
"""Characters of a tool's input or result that are shown."""

_HIDDEN = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,  # Directions, single and in stretches.
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # Also the separators of lines and paragraphs.
    *range(0x2066, 0x206A),
    0x200B,  # Nothing to be seen at all; joiners are left to the scripts that need them.
    *range(0x2060, 0x2065),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)


def _escape(code: int) -> str:
    return chr(code).encode("ascii", "backslashreplace").decode()


_ESCAPES = {code: _escape(code) if code > 0x7F else f"\\x{code:02x}" for code in _HIDDEN if chr(code) not in "\n\t"}
_IN_JSON = {code: json.dumps(chr(code))[1:-1] for code in _ESCAPES}


def harmless(text: str) -> str:
    """The text with every character that controls or hides something spelled out, but line breaks and tabs."""
    return text.translate(_ESCAPES)


def harmless_json(text: str) -> str:
    """The same for JSON, which says the same as before."""
    return text.translate(_IN_JSON)


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
