"""Parts of answers in their provider's own form: searches, code and calls that ran on the provider's servers.

A part stays as it came, and goes back to its provider unchanged. These functions read the little that others need to
know: which use a result belongs to, and the text that another provider's model is shown in the place of a part.

Source: the Messages API (server tools, compaction, containers), the Responses API (items), the Gemini API (parts) and
the Converse API (server tools).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from repertory.core.interrupts import is_yes
from repertory.core.limits import clip
from repertory.core.messages import ContentBlock, Json, Message

MCP_APPROVAL = "mcp_approval_request"
"""The name of the tool use by which a service asks a person to approve one of its own calls. Its input is the item."""
TEXT_CHARS_MAX = 4_000
"""Characters of a part's text for another provider's model; the middle of a longer one is left out."""


def use_of(content: Mapping[str, object]) -> str | None:
    """The id of the server-side tool use that the part is; None for any other part."""
    match content:
        case {"type": "server_tool_use" | "mcp_tool_use", "id": str(use_id)}:
            return use_id
        case {"toolUse": {"toolUseId": str(use_id)}} | {"toolCall": {"id": str(use_id)}}:
            return use_id
        case _:
            return None


def answered_use(content: Mapping[str, object]) -> str | None:
    """The id of the server-side tool use that the part answers; None for any other part."""
    match content:
        case {"type": str(), "tool_use_id": str(use_id)}:
            return use_id
        case {"toolResult": {"toolUseId": str(use_id)}} | {"toolResponse": {"id": str(use_id)}}:
            return use_id
        case _:
            return None


def open_uses(parts: Iterable[Mapping[str, object]]) -> set[str]:
    """The ids of server-side tool uses among the parts that have no result among them."""
    waiting: set[str] = set()
    for part in parts:
        if (use_id := use_of(part)) is not None:
            waiting.add(use_id)
        elif (use_id := answered_use(part)) is not None:
            waiting.discard(use_id)
    return waiting


def takes_results_alone(messages: Sequence[Message]) -> bool:
    """True if a provider's tool of the last answer waits for tool results, and takes nothing beside them: it is code
    that has called tools of the agent, or runs beside such calls.
    """
    parts: list[Mapping[str, object]] = []
    for message in reversed(messages):
        if message["role"] == "user" and not all(
            "toolResult" in block or "cachePoint" in block for block in message["content"]
        ):
            break
        parts += [
            block["providerContent"]["content"] for block in reversed(message["content"]) if "providerContent" in block
        ]
    return bool(messages) and messages[-1]["role"] == "user" and bool(open_uses(reversed(parts)))


def approval_of(answer: object) -> dict[str, Json]:
    """A person's answer to the question of a provider, as the tool result that holds it: `approve`, and a `reason` if
    one was given. Whatever is no clear yes is a no.
    """
    if isinstance(answer, Mapping):
        fields = cast("Mapping[str, object]", answer)
        reason = fields.get("reason")
        approve = is_yes(fields.get("approve", fields.get("approved")))
        return {"approve": approve, **({"reason": reason} if isinstance(reason, str) and reason else {})}
    text = answer.strip() if isinstance(answer, str) else ""
    approve = is_yes(answer)
    return {"approve": approve, **({} if approve or not text or text.lower() in ("n", "no") else {"reason": text})}


def kind_of(content: Mapping[str, object]) -> str:
    """The kind of a part, by its provider's name for it; empty for one without any."""
    named = content.get("type")
    return named if isinstance(named, str) else next(iter(content), "")


def is_compaction(block: ContentBlock) -> bool:
    """True if the block is a provider's part that stands for all that was said before."""
    return "providerContent" in block and kind_of(block["providerContent"]["content"]).startswith("compaction")


def asks_for_approval(use: Mapping[str, object]) -> bool:
    """True if the tool use is a provider's request to have one of its own calls approved."""
    match use:
        case {"name": str(name), "input": {"type": str(kind)}}:
            return name == kind == MCP_APPROVAL
        case _:
            return False


def container_of(content: Mapping[str, object]) -> str | None:
    """The id of the container that the part names; None for any other part."""
    match content:
        case {"type": "container", "id": str(container_id)}:
            return container_id
        case _:
            return None


def text_for_others(content: Mapping[str, object]) -> str | None:
    """The text that another provider's model is shown in the place of the part; None where nothing would be missed.

    A search is in the answer's own words, so only its question is told; code and its output are not, so both are.
    """
    match content:
        # The Messages API.
        case {"type": "server_tool_use" | "mcp_tool_use", "name": str(name)}:
            return _sentence(f"The provider ran its tool {name}", content.get("input"))
        case {"type": str(kind), "content": outcome} if kind.endswith("code_execution_tool_result"):
            return _sentence("Its output", _readable(outcome))
        case {"type": "mcp_tool_result", "content": outcome}:
            return _sentence("Its result", _readable(outcome))
        # The Responses API.
        case {"type": "code_interpreter_call"}:
            return _sentence("The provider ran code", _fields(content, "code", "outputs"))
        case {"type": "web_search_call", "action": {"query": str(query)}}:
            return _sentence("The provider searched the web", query)
        case {"type": "mcp_call", "name": str(name)}:
            return _sentence(f"The provider called {name}", _fields(content, "arguments", "output", "error"))
        case {"type": "shell_call" | "local_shell_call", "action": action}:
            return _sentence("The provider ran commands", action)
        case {"type": "shell_call_output" | "local_shell_call_output", "output": output}:
            return _sentence("Their output", output)
        # The Gemini API.
        case {"executableCode": {"code": str(code)}}:
            return _sentence("The provider ran code", code)
        case {"codeExecutionResult": outcome}:
            return _sentence("Its output", outcome)
        case {"toolCall": {"toolType": str(name)} as called}:
            return _sentence(f"The provider ran its tool {name}", cast("Mapping[str, object]", called).get("args"))
        # The Converse API.
        case {"toolUse": use} if isinstance(use, Mapping):
            ran = cast("Mapping[str, object]", use)
            return _sentence(f"The provider ran its tool {ran.get('name')}", ran.get("input"))
        case {"toolResult": result} if isinstance(result, Mapping):
            return _sentence("Its output", _readable(cast("Mapping[str, object]", result).get("content")))
        case _:
            return None


def _fields(content: Mapping[str, object], *names: str) -> dict[str, object]:
    return {name: content[name] for name in names if content.get(name)}


def _sentence(what: str, details: object) -> str:
    if details in (None, "", {}, []):
        return f"({what}.)"
    text = details if isinstance(details, str) else json.dumps(details, ensure_ascii=False, default=str)
    return f"({what}: {clip(text, TEXT_CHARS_MAX)})"


def _readable(value: object) -> object:
    """The value without encrypted and encoded contents, which only the provider can read."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {
            key: _readable(item)
            for key, item in fields.items()
            if not (key.startswith("encrypted") or (key == "data" and isinstance(item, str) and len(item) > 200))
        }
    if isinstance(value, list | tuple):
        return [_readable(item) for item in cast("list[object]", value)]
    return value
