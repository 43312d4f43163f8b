"""How a call starts: what the history, the journal and the prompt together ask for.

The last stored message says where the conversation stands. After an answer a prompt begins a turn. After a user
message the turn was cut short before its answer. After a message with tool uses it was cut short among its tools, and
each of these has one of three outcomes: finished (its recorded result is used), never started (it runs), or started
with unknown outcome, which is decided by policy and never by running it again in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from repertory.core.messages import ContentBlock, Json, Message, ToolResult, ToolUse, error_result, tool_uses
from repertory.core.prompt import Answers, Said
from repertory.core.turn import Began, Continued
from repertory.errors import Invalid, NotFound

UnknownOutcome = Literal["ask", "retry", "fail"]

NO_ANSWER_TEXT = "(This message was not answered: the turn ended early.)"
NOT_RUN_TEXT = "Not run: the turn ended before this tool started."
UNKNOWN_TEXT = (
    "Outcome unknown: the process stopped while this tool was running. "
    "It may or may not have taken effect. Do not repeat it without checking or asking."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """The turn waits for a person. Answer with `{"interruptResponse": {"interruptId": id, "response": ...}}`."""

    id: str
    name: str
    reason: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a conversation stands, as its journal says."""

    last: Message | None
    started: frozenset[str] = frozenset()
    """Tool use ids of the last message that were started and have no recorded result."""
    finished: Mapping[str, ToolResult] = field(default_factory=dict["str", "ToolResult"])
    """Results recorded for tool uses of the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The call ends at once, asking a person about tools with unknown outcome."""

    interrupts: tuple[Interrupt, ...]


Opening: TypeAlias = "Began | Continued | Ask"

Policy: TypeAlias = Callable[[ToolUse], UnknownOutcome]
"""What to do with a tool use of unknown outcome: idempotent tools answer `retry`."""


def open_turn(standing: Standing, prompt: Said | Answers, policy: Policy) -> Opening:
    """What the call begins with. Errors: `Invalid` when there is nothing to go on with or to answer."""
    uses = tuple(tool_uses(standing.last)) if standing.last is not None else ()
    if isinstance(prompt, Answers):
        return _answered(standing, uses, prompt.responses)
    if uses:
        return _closed(standing, uses, prompt.messages) if prompt.messages else _resumed(standing, uses, policy)
    return _began(standing.last, prompt.messages)


def _began(last: Message | None, messages: tuple[Message, ...]) -> Began:
    if last is None or last["role"] == "assistant":
        if not messages:
            raise Invalid("there is no unanswered message to go on from; pass a prompt")
        return Began(messages=messages)
    if not messages or messages[0]["role"] == "assistant":
        return Began(messages=messages)
    note: Message = {"role": "assistant", "content": [{"text": NO_ANSWER_TEXT}]}
    return Began(messages=(note, *messages))


def _resumed(standing: Standing, uses: tuple[ToolUse, ...], policy: Policy) -> Continued | Ask:
    """Go on among the tools: known results stay, the policy decides on each unknown outcome, the rest runs."""
    known = dict(standing.finished)
    interrupts: list[Interrupt] = []
    for use in uses:
        if use["toolUseId"] in known or use["toolUseId"] not in standing.started:
            continue
        match policy(use):
            case "retry":
                pass
            case "fail":
                known[use["toolUseId"]] = error_result(use["toolUseId"], UNKNOWN_TEXT)
            case "ask":
                interrupts.append(interrupt_for(use))
    if interrupts:
        return Ask(interrupts=tuple(interrupts))
    return Continued(uses=uses, known=known)


def _closed(standing: Standing, uses: tuple[ToolUse, ...], messages: tuple[Message, ...]) -> Began:
    """The caller moves on: give every open tool use a result that says what is known, in front of what was said."""
    results: list[ContentBlock] = []
    for use in uses:
        use_id = use["toolUseId"]
        unknown = UNKNOWN_TEXT if use_id in standing.started else NOT_RUN_TEXT
        results.append({"toolResult": standing.finished.get(use_id) or error_result(use_id, unknown)})
    first, *rest = messages
    if first["role"] == "user":
        return Began(messages=({**first, "content": [*results, *first["content"]]}, *rest))
    return Began(messages=({"role": "user", "content": results}, *messages))


def _answered(standing: Standing, uses: tuple[ToolUse, ...], responses: Mapping[str, Json]) -> Continued | Ask:
    """A person said what to do about each unknown outcome: "retry", "fail", or {"result": text} when they know it."""
    waiting = {
        interrupt_for(use).id: use
        for use in uses
        if use["toolUseId"] in standing.started and use["toolUseId"] not in standing.finished
    }
    for interrupt_id in responses:
        if interrupt_id not in waiting:
            raise NotFound("no such interrupt is waiting", interrupt=interrupt_id, waiting=sorted(waiting))
    known = dict(standing.finished)
    for interrupt_id, response in responses.items():
        result = _settled(waiting[interrupt_id]["toolUseId"], response)
        if result is not None:
            known[result["toolUseId"]] = result
    unanswered = [interrupt_for(use) for interrupt_id, use in waiting.items() if interrupt_id not in responses]
    if unanswered:
        return Ask(interrupts=tuple(unanswered))
    return Continued(uses=uses, known=known)


def _settled(use_id: str, response: Json) -> ToolResult | None:
    match response:
        case "retry":
            return None
        case "fail":
            return error_result(use_id, UNKNOWN_TEXT)
        case {"result": result}:
            text = result if isinstance(result, str) else repr(result)
            return {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}
        case _:
            raise Invalid('an unknown tool outcome is answered with "retry", "fail" or {"result": ...}', got=response)


def interrupt_for(use: ToolUse) -> Interrupt:
    """The interrupt that asks about a tool use of unknown outcome. The same use always gives the same id."""
    return Interrupt(
        id=f"v1:unknown_outcome:{use['toolUseId']}",
        name="unknown_tool_outcome",
        reason={"tool": use["name"], "toolUseId": use["toolUseId"], "input": use["input"]},
    )
