"""A model that needs no network: fixed rules instead of a language model. Every answer says so."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repertory.backends.models.message_events import message_events
from repertory.backends.models.offline_rules import Say, Situation, Use, decide
from repertory.backends.ports import Model, StreamEvent
from repertory.core.messages import text_of, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolSpec

LABEL = "[offline] "
"""What every answer begins with, so that nobody takes it for a language model's."""

_SENTENCES = {
    "calculator": "The result is {}.",
    "current_time": "It is {}.",
    "list_files": "These files are there: {}",
    "read_file": "The file says: {}",
    "write_file": "Saved. {}",
    "append_file": "Appended. {}",
}


class OfflineModel(Model):
    """Answers by rules: arithmetic, the time, notes in files, facts said earlier, and otherwise what it understood.

    It calls the tools `calculator(expression)`, `current_time()`, `list_files()`, `read_file(path)`,
    `write_file(path, text)` and `append_file(path, text)` when they are offered, and answers with their results. The
    same conversation gets the same answer. Words stream one by one, without delay. It never fails.
    """

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """The answer to the last message."""
        block = _answer(messages, [spec["name"] for spec in tool_specs or ()])
        for event in message_events([block], split=_words):
            yield event
        asked = estimate_tokens(messages, tool_specs, system_prompt)
        said = estimate_tokens([{"role": "assistant", "content": [block]}])
        usage = {"inputTokens": asked, "outputTokens": said, "totalTokens": asked + said}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


def _answer(messages: Sequence[Message], tools: Sequence[str]) -> ContentBlock:
    if messages and (results := list(tool_results(messages[-1]))):
        return {"text": LABEL + " ".join(_result_sentences(messages, results))}
    said = [text for message in messages if (text := text_of(message)) and not text.startswith(LABEL)]
    text = text_of(messages[-1]).strip() if messages else ""
    match decide(Situation(text=text, said=said, tools=tools)):
        case Say(text):
            return {"text": LABEL + text}
        case Use(name, arguments):
            return {"toolUse": {"toolUseId": _use_id(messages), "name": name, "input": dict(arguments)}}


def _result_sentences(messages: Sequence[Message], results: Sequence[ToolResult]) -> Iterator[str]:
    names = {use["toolUseId"]: use["name"] for message in messages[-2:] for use in tool_uses(message)}
    for result in results:
        text = "\n".join(_part_text(part) for part in result["content"]).strip()
        name = names.get(result["toolUseId"], "the tool")
        if result.get("status") == "error":
            yield f"The tool {name} failed: {text}"
        else:
            yield _SENTENCES.get(name, f"The tool {name} answered: {{}}").format(text)


def _part_text(part: Mapping[str, object]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else json.dumps(part.get("json"), default=str)


def _use_id(messages: Sequence[Message]) -> str:
    """An id that the same conversation always gets and that no other tool use in it has."""
    asked = json.dumps(messages, sort_keys=True, default=str)
    return f"tooluse_{hashlib.sha256(asked.encode()).hexdigest()[:16]}"


def _words(text: str) -> Sequence[str]:
    """The words, each with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text)
