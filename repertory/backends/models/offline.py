"""A model that needs no network: fixed rules instead of a language model. Every answer says so."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from repertory.backends.ports import Model
from repertory.core.answer import message_events
from repertory.core.messages import text_of, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens

if TYPE_CHECKING:
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolSpec, Usage

OFFLINE_LABEL = "[offline] "
"""The start of every answer, so that no user takes it for a language model's."""

_SENTENCES = {
    "calculator": "The result is {}.",
    "current_time": "It is {}.",
    "list_files": "These files are there: {}",
    "read_file": "The file says: {}",
    "write_file": "Saved. {}",
    "append_file": "Appended. {}",
}


class OfflineModel(Model):
    """Answers by rules: arithmetic, the time, notes in files, facts from earlier messages; otherwise repeats what it
    understood.

    It calls the tools `calculator(expression)`, `current_time()`, `list_files()`, `read_file(path)`, `write_file(path,
    text)` and `append_file(path, text)` when they are offered, and answers with their results. The same conversation
    gets the same answer. Words stream one by one, without delay. It never fails.
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
        input_tokens = estimate_tokens(messages, tool_specs, system_prompt)
        output_tokens = estimate_tokens([{"role": "assistant", "content": [block]}])
        usage: Usage = {
            "inputTokens": input_tokens,
            "outputTokens": output_tokens,
            "totalTokens": input_tokens + output_tokens,
        }
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


def _answer(messages: Sequence[Message], tools: Sequence[str]) -> ContentBlock:
    if messages and (results := list(tool_results(messages[-1]))):
        return {"text": OFFLINE_LABEL + " ".join(_result_sentences(messages, results))}
    texts = [text for message in messages if (text := text_of(message)) and not text.startswith(OFFLINE_LABEL)]
    text = text_of(messages[-1]).strip() if messages else ""
    match decide(Situation(text=text, texts=texts, tools=tools)):
        case Say(text):
            return {"text": OFFLINE_LABEL + text}
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
    """An id that depends only on the conversation and is unique in it."""
    asked = json.dumps(messages, sort_keys=True, default=str)
    return f"tooluse_{hashlib.sha256(asked.encode()).hexdigest()[:16]}"


def _words(text: str) -> Sequence[str]:
    """The words, each with the space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


# The rules of the offline model: from the conversation and the available tools to one decision.
#
# Pure and deterministic. The first rule that fits decides; the order of `_RULES` is the order of trust. Rules look at
# the latest user text only, except for facts ("my dog is called Rex"), which are looked up in everything that was
# said.


class Say(Struct, frozen=True):
    """Answer with this text."""

    text: str


class Use(Struct, frozen=True):
    """Call this tool first."""

    name: str
    arguments: dict[str, str] = {}


OfflineReply: TypeAlias = "Say | Use"


class Situation(Struct, frozen=True, kw_only=True):
    """The input of a rule."""

    text: str
    """The last user text."""
    texts: Sequence[str]
    """Every text of the conversation, oldest first, the last one included."""
    tools: Collection[str]
    """Names of the available tools."""


def decide(situation: Situation) -> OfflineReply:
    """The reply to the last user text. In a long text, only a request to save it is understood: the other rules may
    take time that grows with the square of its length.
    """
    for rule in _RULES if len(situation.text) <= _UNDERSTOOD_CHARS_MAX else (_save_file,):
        decision = rule(situation)
        if decision is not None:
            return _callable_or_sorry(decision, situation.tools)
    return _echo(situation)


def facts(texts: Sequence[str]) -> dict[str, str]:
    """Facts that users stated about themselves, by subject ("name" -> "Ada"); the last value wins."""
    return {subject: value for text in texts for subject, value in _facts_in(text)}


def _callable_or_sorry(decision: OfflineReply, tools: Collection[str]) -> OfflineReply:
    if isinstance(decision, Use) and decision.name not in tools:
        return Say(f"That takes the tool {decision.name}, which I was not given.")
    return decision


def _save_file(situation: Situation) -> OfflineReply | None:
    pattern = rf"(?:please )?(save|write|append|add)\b{_FILE}:\s*(.+)"
    found = re.match(pattern, situation.text, re.IGNORECASE | re.DOTALL)
    if found is None:
        return None
    verb, path, text = found.groups()
    tool = "append_file" if verb.lower() in ("append", "add") else "write_file"
    return Use(tool, {"path": _path(path), "text": text.strip()})


def _read_file(situation: Situation) -> OfflineReply | None:
    found = re.match(rf"(?:please )?(?:read|open|show(?: me)?)\b{_FILE}[.?!]*$", situation.text, re.IGNORECASE)
    return Use("read_file", {"path": _path(found.group(1))}) if found else None


def _list_files(situation: Situation) -> OfflineReply | None:
    wanted = r"\b(?:list|show|which|what)\b[^.?!]*\b(?:files|notes)\b"
    return Use("list_files") if re.search(wanted, situation.text, re.IGNORECASE) else None


def _summarise(situation: Situation) -> OfflineReply | None:
    if not re.search(r"\bsummari[sz]e|\bsummary\b", situation.text, re.IGNORECASE):
        return None
    known = [f"{subject} is {value}" for subject, value in facts(situation.texts).items()]
    texts = [_shortened(text, 80) for text in situation.texts[:-1]]
    return Say("Summary. Facts: " + ("; ".join(known) or "none") + ". Said: " + (" | ".join(texts) or "nothing") + ".")


def _recall(situation: Situation) -> OfflineReply | None:
    found = re.search(
        r"\b(?:what(?:'s| is| was| are)|who is|do you (?:know|remember|recall)|tell me) my ([\w ]+?)\s*\?*$",
        situation.text,
        re.IGNORECASE,
    )
    if found is None:
        return None
    subject = found.group(1).lower()
    value = facts(situation.texts).get(subject)
    return Say(f"Your {subject} is {value}." if value else f"You have not told me what your {subject} is.")


def _remember(situation: Situation) -> OfflineReply | None:
    new = [f"your {subject} is {value}" for subject, value in _facts_in(situation.text)]
    return Say(f"Noted: {', and '.join(new)}.") if new else None


def _calculate(situation: Situation) -> OfflineReply | None:
    text = situation.text.lower()
    for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*"), ("divided by", "/"), ("x", "*"), ("\u00d7", "*")):
        text = re.sub(rf"(?<=[\d)])\s*{word}\s*(?=[\d(])", sign, text)
    text = re.sub(r"\d{4}-\d{2}-\d{2}", "", text)  # a date is no subtraction
    found = re.search(r"[-(]*\d[\d.]*(?:[\s)]*[-+*/%]+[\s(]*-?[\d.]+)+\s*\)*", text)
    return Use("calculator", {"expression": " ".join(found.group().split())}) if found else None


def _tell_time(situation: Situation) -> OfflineReply | None:
    asked = r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date|day)\b|\b(?:time|date|day) is it\b|\btoday's date\b"
    return Use("current_time") if re.search(asked, situation.text, re.IGNORECASE) else None


def _introduce(situation: Situation) -> OfflineReply | None:
    greeted = r"^(?:hello|hi|hey|good (?:morning|evening))\b|\bwhat can you do\b|^help\b"
    if not re.search(greeted, situation.text, re.IGNORECASE):
        return None
    tools = ", ".join(sorted(situation.tools)) or "no tools"
    return Say(f"Hello. I am a set of rules, not a language model. I remember what you tell me. I can use: {tools}.")


def _echo(situation: Situation) -> Say:
    known = len(facts(situation.texts))
    return Say(f'I understood: "{_shortened(situation.text, 200)}". I have no rule for that. Facts known: {known}.')


_RULES: tuple[Callable[[Situation], OfflineReply | None], ...] = (
    _save_file,
    _read_file,
    _list_files,
    _summarise,
    _recall,
    _remember,
    _calculate,
    _tell_time,
    _introduce,
)
_UNDERSTOOD_CHARS_MAX = 2_000
_FILE = r"(?: (?:a|the|my|to))* ?(?:note|file)?(?: called| named)? ([\w./-]+)"
_FACT = re.compile(
    r"\bmy ([a-z][a-z ]{0,40}?) (?:is|are|was)(?: called| named)? ([^.!?\n]{1,200})"
    r"|\b(?:call me|i am called|i'm called) ([^.!?\n,]{1,200})",
    re.IGNORECASE,
)


def _facts_in(text: str) -> Iterator[tuple[str, str]]:
    for found in _FACT.finditer(text):
        subject, value, name = found.groups()
        yield ("name", name.strip()) if name else (subject.lower(), value.strip())


def _path(name: str) -> str:
    name = name.rstrip(".")
    return name if "." in name.rsplit("/", 1)[-1] else f"{name}.txt"


def _shortened(text: str, characters_max: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."
