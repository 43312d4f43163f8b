"""The start of a call, decided from the history, the journal and the prompt.

The last stored message tells where the conversation stands. After an answer, a prompt begins a turn. After a user
message, the turn ended before its answer. After a message with tool uses, the turn ended among its tools. Each of these
has an outcome: finished (its recorded result is used), never started (it runs), waiting for a person (it runs after the
answer), or started with unknown outcome. For those a policy decides: they never run again without a decision.

A turn with an idempotency token that another turn followed goes on at the end of the conversation when it is called
again: a note stands in for its prompt, and its tools of unknown outcome are asked for once more, as a crash would have
left them (`docs/design/turn.md`).

An interrupt is answered, waiting, or over: it expired, or the caller goes on without an answer. A tool that waited for
one that is over gets an error result that says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.answer import Answer
from repertory.core.callers import CallerRules, check_allowed, check_parts
from repertory.core.interrupts import UNKNOWN_OUTCOME, UNKNOWN_STEP, Interrupt, held_up, is_about_outcome
from repertory.core.journal.image import UnansweredTurn
from repertory.core.journal.pending_tools import PendingTools, asked_again_id
from repertory.core.journal.steps import step_records
from repertory.core.limits import PROMPT_BYTES, check_size
from repertory.core.messages import (
    NO_ANSWER_TEXT,
    ContentBlock,
    Json,
    Message,
    ToolResult,
    ToolUse,
    check_next,
    check_prompt,
    copy_message,
    error_result,
    is_filler,
    is_paused,
    is_stopped,
    plain_fault,
    prompt_fault,
    tool_results,
    tool_uses,
)
from repertory.core.state import json_copy
from repertory.core.steps import step_answer
from repertory.core.turn import Began, Continued
from repertory.errors import InterruptExpired, InterruptNotFound, InterruptsWaiting, Invalid, TooLarge

if TYPE_CHECKING:
    from repertory.core.journal.records import Record
    from repertory.core.messages import Usage

UnknownOutcome = Literal["ask", "retry", "fail"]
Busy = Literal["queue", "reject", "interrupt", "steer"]
"""The conduct of a call while another turn runs: wait, be refused, cancel that turn, or add to it."""

NOT_RUN_TEXT = "Not run: the turn ended before this tool started."
NOT_GONE_ON_TEXT = "Not finished: a person was asked, and the turn ended before this tool went on."
UNKNOWN_TEXT = (
    "Outcome unknown: the process stopped while this tool was running. "
    "It may or may not have taken effect. Do not repeat it without checking or asking."
)
EXPIRED_TEXT = "Not finished: a person was asked, and nobody answered in time."
RUN_ASKS_TEXT = "(A tool in the background needs a person before it can go on.)"
STOPPED_GO_ON_TEXT = "(Go on with your last answer, which was stopped.)"
STOPPED_ANEW_TEXT = "(Answer my last message anew, from the beginning: your answer was stopped.)"
DROPPED_TEXT = "Not finished: a person was asked, and nobody answered."


class AskPerson(Struct, frozen=True, kw_only=True):
    """The call ends at once: a person must answer these interrupts first."""

    interrupts: tuple[Interrupt, ...]


TurnStart: TypeAlias = "Began | Continued | AskPerson"

Policy: TypeAlias = Callable[[ToolUse], UnknownOutcome]
"""The policy that decides on a tool use of unknown outcome. Idempotent tools get `retry`."""


class _Tools(Struct, frozen=True, kw_only=True):
    """The tool uses of the last message, with their known results and open interrupts."""

    pending: PendingTools
    uses: tuple[ToolUse, ...]
    open: tuple[Interrupt, ...]
    """Interrupts of tools and hooks that can still be answered."""
    known: Mapping[str, ToolResult]
    """Tool use id to result: the recorded ones, and errors for tools whose interrupt is over."""


def start_turn(
    pending: PendingTools,
    prompt: UserMessages | InterruptResponses,
    policy: Policy,
    *,
    now: float = 0.0,
    drop: bool = False,
    first: bool = False,
) -> TurnStart:
    """The beginning of the call. `now`: epoch seconds. With `drop`, waiting interrupts count as over. `first`: the
    conversation had no turn yet, so its last message is the program's, and the prompt stands behind it.

    Errors: `Invalid` when there is nothing to go on with, and for a malformed or a second, different response;
    `UnpairedTools` for messages that may not follow the last one; `InterruptNotFound` and `InterruptExpired` for
    responses to unknown and expired interrupts; `InterruptsWaiting` for a prompt while an interrupt waits.
    """
    uses = tuple(tool_uses(pending.last)) if pending.last is not None else ()
    if isinstance(prompt, InterruptResponses):
        _check_answers(pending, uses, prompt.responses, now)
        return _going_on(_tools(pending.answered(prompt.responses), uses, now, drop=drop), policy)
    if not uses:
        return _checked(pending.last, _began(pending.last, prompt.messages, noted=not first))
    tools = _tools(pending, uses, now, drop=drop)
    return _checked(pending.last, _closed(tools, prompt.messages)) if prompt.messages else _going_on(tools, policy)


def _checked(last: Message | None, began: Began) -> Began:
    """Errors: `UnpairedTools`, before any of the messages is stored."""
    for message in began.messages:
        check_next(last, message)
        last = message
    return began


def _tools(pending: PendingTools, uses: tuple[ToolUse, ...], now: float, *, drop: bool) -> _Tools:
    known = dict(pending.finished)
    waiting: list[Interrupt] = []
    for question in pending.waiting:
        # Asked by `_going_on` anew, for each tool whose outcome is still unknown.
        if is_about_outcome(question):
            continue
        if not (drop or question.is_over(now)):
            waiting.append(question)
            continue
        text = EXPIRED_TEXT if question.is_over(now) else DROPPED_TEXT
        for use_id in held_up(question, uses):
            if use_id not in pending.started:
                known.setdefault(use_id, error_result(use_id, text))
    return _Tools(pending=pending, uses=uses, open=tuple(waiting), known=known)


def _began(last: Message | None, messages: tuple[Message, ...], *, noted: bool) -> Began:
    if last is None or last["role"] == "assistant":
        # The provider goes on when it gets its own answer back as the last message.
        if not messages and last is not None and is_paused(last):
            return Began(messages=())
        if not messages and last is not None and is_stopped(last):
            return Began(messages=(_saying(STOPPED_GO_ON_TEXT),))
        if not messages:
            raise Invalid("there is no unanswered message to go on from; pass a prompt")
        return Began(messages=messages)
    if not messages or messages[0]["role"] == "assistant" or not noted:
        return Began(messages=messages)
    # Providers refuse two messages of the user in a row, and the model should know that the first has no answer.
    note: Message = {"role": "assistant", "content": [{"text": NO_ANSWER_TEXT}]}
    return Began(messages=(note, *messages))


def _going_on(tools: _Tools, policy: Policy) -> Continued | AskPerson:
    """Go on among the tools: known results stay, the policy decides on unknown outcomes, the rest runs."""
    known, pending = dict(tools.known), tools.pending
    interrupts = list(tools.open)
    for use in tools.uses:
        use_id = use["toolUseId"]
        if use_id in known or use_id not in pending.started:
            continue
        answer = pending.outcome_id(use_id)
        decided = policy(use)
        if answer in pending.responses:
            result = _settled(use_id, pending.responses[answer])
            if result is not None:
                known[use_id] = result
        elif decided == "fail":
            known[use_id] = error_result(use_id, UNKNOWN_TEXT)
        elif decided == "ask":
            interrupts.append(interrupt_for(use, answer))
    if interrupts:
        return AskPerson(interrupts=tuple(interrupts))
    return Continued(uses=tools.uses, known=known)


def _closed(tools: _Tools, messages: tuple[Message, ...]) -> Began:
    """The caller moves on: put a result for every open tool use in front of the new messages."""
    if tools.open:
        raise InterruptsWaiting(
            "a person is to answer first: call with interrupt responses, or with drop_interrupts=True to go on without",
            waiting={one.id: one.name for one in tools.open},
        )
    # Every use needs one: providers refuse the history otherwise, and with it every later call.
    results: list[ContentBlock] = [{"toolResult": _closing(tools, use["toolUseId"])} for use in tools.uses]
    first, *rest = messages
    if first["role"] == "user":
        # In one message, results first, as the providers' APIs want them.
        return Began(messages=({**first, "content": [*results, *first["content"]]}, *rest))
    return Began(messages=({"role": "user", "content": results}, *messages))


def _closing(tools: _Tools, use_id: str) -> ToolResult:
    if use_id in tools.known:
        return tools.known[use_id]
    if use_id in tools.pending.started:
        return error_result(use_id, UNKNOWN_TEXT)
    return error_result(use_id, NOT_GONE_ON_TEXT if use_id in tools.pending.starts else NOT_RUN_TEXT)


def _check_answers(pending: PendingTools, uses: tuple[ToolUse, ...], responses: Mapping[str, Json], now: float) -> None:
    """Errors: `InterruptNotFound`, `InterruptExpired`, `Invalid`."""
    outcomes = {
        pending.outcome_id(use["toolUseId"]): use["toolUseId"]
        for use in uses
        if use["toolUseId"] in pending.started and use["toolUseId"] not in pending.finished
    }
    questions = {one.id: one for one in pending.questions if uses and not is_about_outcome(one)}
    for interrupt_id, response in responses.items():
        if interrupt_id in outcomes:
            # Called for its errors: an answer that nobody can read is refused before it is recorded.
            _settled(outcomes[interrupt_id], response)
        elif interrupt_id not in questions:
            waiting = sorted({*outcomes, *questions} - pending.responses.keys())
            raise InterruptNotFound("no such interrupt is waiting", interrupt=interrupt_id, waiting=waiting)
        elif interrupt_id in pending.responses:
            # The same answer again is no error: clients repeat calls whose reply they have not seen.
            if pending.responses[interrupt_id] != response:
                raise Invalid("this interrupt has another answer already", interrupt=interrupt_id)
        elif questions[interrupt_id].name.startswith(f"{UNKNOWN_STEP}:"):
            step_answer(response)
        elif questions[interrupt_id].is_over(now):
            raise InterruptExpired(
                "nobody may answer this any more: call with a prompt, or with None, to go on without an answer",
                interrupt=interrupt_id,
                expires_at=questions[interrupt_id].expires_at,
            )


def check_response(interrupt: Interrupt, response: Json) -> None:
    """Return for an answer that the turn would take. Errors: `Invalid` for one about an unknown outcome that nobody can
    read, and for what no journal can hold.
    """
    if is_about_outcome(interrupt):
        _settled("", response)
    elif interrupt.name.startswith(f"{UNKNOWN_STEP}:"):
        step_answer(response)
    _answer({"interruptId": interrupt.id, "response": response})


def brought_before(
    pending: PendingTools, responses: Mapping[str, Json], token: str | None, tokens: Collection[str]
) -> bool:
    """True if this call has brought these answers already, before its process was killed, and its turn has gone on
    since: there is nothing left to answer.

    `token`: of the call. `tokens`: of the turn that the journal ends in the middle of, its own in front of those of
    calls that joined it.
    """
    if token is None or token not in tokens:
        return False
    uses = () if pending.last is None else tuple(tool_uses(pending.last))
    asked = {*(one.id for one in pending.questions), *(pending.outcome_id(use["toolUseId"]) for use in uses)}
    if asked & responses.keys():
        return False  # As any answer that is sent again.
    # A client answers by the turn's own token, and may be wrong about what is asked now.
    return token != next(iter(tokens)) or (pending.last is not None and any(tool_results(pending.last)))


def _settled(use_id: str, response: Json) -> ToolResult | None:
    """A person's answer about an unknown outcome: "retry", "fail", or {"result": text} when they know it. False, a
    question that was cancelled, is "fail".
    """
    match response:
        case "retry":
            return None
        case "fail" | False:
            return error_result(use_id, UNKNOWN_TEXT)
        case {"result": result}:
            text = result if isinstance(result, str) else repr(result)
            return {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}
        case _:
            raise Invalid('an unknown tool outcome is answered with "retry", "fail" or {"result": ...}', got=response)


def interrupt_for(use: ToolUse, interrupt_id: str) -> Interrupt:
    """The interrupt that asks about a tool use of unknown outcome."""
    return Interrupt(
        id=interrupt_id,
        name=UNKNOWN_OUTCOME,
        reason={"tool": use["name"], "toolUseId": use["toolUseId"], "input": use["input"]},
    )


def _saying(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def taking_over(prompt: UserMessages) -> UserMessages:
    """The prompt of a turn that takes over a tool from the background, with words of the agent where nobody called."""
    return prompt if prompt.messages else UserMessages(messages=(_saying(RUN_ASKS_TEXT),))


def going_on_with(turn: UnansweredTurn, visible: Sequence[tuple[int, Message]], asked: tuple[Message, ...]) -> Message:
    """The message that resumes an unanswered turn after others began. It refers to the prompt by its place.

    `visible`: the messages that the model gets, with sequence numbers. `asked`: the caller's prompt, repeated only when
    the model no longer gets the original; none to go on where the turn's answer was stopped.
    """
    stopped = not turn.left and bool(visible) and is_stopped(visible[-1][1])
    if stopped and not asked:
        return _saying(STOPPED_GO_ON_TEXT)
    begun = next((message for seq, message in visible if seq == turn.seq), None)
    if begun is None:
        blocks: list[ContentBlock] = [{"text": "(Go on with an earlier message of mine that has no answer yet:)"}]
        return {"role": "user", "content": [*blocks, *(block for message in asked for block in message["content"])]}
    since = sum(seq > turn.seq and _is_prompt(message) for seq, message in visible) - is_filler(begun)
    if since < 1:
        return _saying(STOPPED_ANEW_TEXT if stopped else "(Go on with my last message, which has no answer yet.)")
    which = f"the one {since} before my last one" if since > 1 else "the one before my last one"
    text = f"(Go on with an earlier message of mine that has no answer yet: {which}.)"
    return _saying(text)


def _is_prompt(message: Message) -> bool:
    return message["role"] == "user" and any("toolResult" not in block for block in message["content"])


def asked_again(turn: UnansweredTurn, at: float) -> tuple[Message, Sequence[Record]]:
    """The unknown tools of a resumed turn: a message that asks for them under new ids, and the records of their starts
    and steps, which keep idempotency keys and attempts.
    """
    uses: list[ContentBlock] = []
    starts: list[Record] = []
    for use, started, steps in turn.unknown:
        use_id = asked_again_id(use["toolUseId"])
        uses.append({"toolUse": {**use, "toolUseId": use_id}})
        starts.append(replace(started, at=at, tool_use_id=use_id))
        starts += [replace(record, at=at, tool_use_id=use_id) for record in step_records(steps)]
    return {"role": "assistant", "content": uses}, starts


# Reading a prompt: the forms that a call accepts, as messages or as interrupt responses.

_BOUND = "limits['prompt_bytes']"


class UserMessages(Struct, frozen=True, kw_only=True):
    """New messages, in order; empty for the prompt None, which goes on without a new message."""

    messages: tuple[Message, ...]


class InterruptResponses(Struct, frozen=True, kw_only=True):
    """Interrupt id to response."""

    responses: Mapping[str, Json]


def read_prompt(
    prompt: object, bytes_max: int = PROMPT_BYTES, rules: CallerRules | None = None
) -> UserMessages | InterruptResponses:
    """Read a prompt in any of its forms; the result is a copy. `rules`: for a prompt of a caller, who may say less.

    A string or a list of content blocks is one user message; a list of messages is taken as it is; None is no message;
    a list of `{"interruptResponse": {"interruptId", "response"}}` is responses. Errors: `Invalid` with what was given;
    `TooLarge` above `bytes_max` (`core/limits.py`), and for a caller's prompt of too many parts.
    """
    if prompt is None:
        return UserMessages(messages=())
    # Before anything looks into it: every check below walks through all of it.
    check_size(prompt, bytes_max, "the prompt is too large; say less, or put it where a tool can read it", _BOUND)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise Invalid("a prompt needs some text; pass None to go on without a new message")
        if (fault := plain_fault(prompt, "prompt")) is not None:
            raise Invalid(fault)
        return UserMessages(messages=({"role": "user", "content": [{"text": prompt}]},))
    if not isinstance(prompt, list | tuple):
        text = "a prompt must be of type: `str | list[ContentBlock] | Messages | None`, or interrupt responses"
        if isinstance(prompt, Mapping):
            text = f"{text}: put the dictionary into a list, [{{...}}]"
        raise Invalid(text, got=type(cast("object", prompt)).__name__)
    items = list(cast("Sequence[object]", prompt))
    if rules is not None:
        check_parts(items)
    if not items:
        raise Invalid("a prompt needs at least one content block; pass None to go on without a new message")
    if any(not isinstance(item, dict) for item in items):
        raise Invalid("a prompt list holds dictionaries: a prompt is `str | list[ContentBlock] | Messages | None`")
    blocks = cast("list[dict[str, object]]", items)
    # All or none: with messages among them nobody could say which came first.
    if all("interruptResponse" in block for block in blocks):
        return InterruptResponses(responses=_answers(blocks))
    if all("role" in block for block in blocks):
        messages = check_prompt(blocks, "messages")
        if rules is not None:
            check_allowed(messages, rules)
        return UserMessages(messages=tuple(map(copy_message, messages)))
    if any("role" in block or "interruptResponse" in block for block in blocks):
        raise Invalid("a prompt list is no mixture: it is `list[ContentBlock] | Messages | list[InterruptResponse]`")
    message = {"role": "user", "content": blocks}
    fault = prompt_fault(message, "prompt")
    if fault is not None:
        raise Invalid(fault)
    asked = cast("Message", message)
    if rules is not None:
        check_allowed([asked], rules)
    return UserMessages(messages=(copy_message(asked),))


def _answers(blocks: Sequence[dict[str, object]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for block in blocks:
        interrupt_id, response = _answer(block["interruptResponse"])
        # Twice the same is one answer.
        if found.setdefault(interrupt_id, response) != response:
            raise Invalid("an interrupt has one answer", interrupt=interrupt_id)
    return found


# A tool call that the program makes itself, as messages: the request and its completion.
#
# Source: the texts are those of the Strands SDK.


def _answer(response: object) -> tuple[str, Json]:
    fields = cast("dict[str, object]", response) if isinstance(response, dict) else {}
    interrupt_id = fields.get("interruptId")
    if not isinstance(interrupt_id, str) or "response" not in fields:
        raise Invalid("an interrupt response is {'interruptId': ..., 'response': ...}")
    answer = json_copy(fields["response"])
    if (fault := plain_fault(answer, "response")) is not None:
        raise Invalid(fault)
    return interrupt_id, answer


DIRECT_WHILE_BUSY = (
    "Direct tool call cannot be made while the agent is in the middle of an invocation. "
    "Set record_direct_tool_call=False to allow direct tool calls during agent invocation."
)


def recorded(use: ToolUse) -> ToolUse:
    """The tool use with its arguments as JSON. A value that JSON cannot hold becomes its type's name."""
    arguments = cast("Mapping[str, object]", use["input"])
    return {**use, "input": {name: _json_or_name(value) for name, value in arguments.items()}}


def direct_prompt(use: ToolUse, override: str | None) -> Message:
    """The user message recorded for a direct call; `override` comes first."""
    arguments = json.dumps(use["input"], ensure_ascii=False)
    text = f"agent.tool.{use['name']} direct tool call.\nInput parameters: {arguments}\n"
    blocks: list[ContentBlock] = [] if override is None else [{"text": f"{override}\n"}]
    return {"role": "user", "content": [*blocks, {"text": text}]}


def direct_answers(use: ToolUse) -> list[Answer]:
    """The model answers recorded for a direct call: the tool use, then, after its result, the end."""
    end = f"agent.tool.{use['name']} was called."
    return [_known_answer({"toolUse": use}, "tool_use"), _known_answer({"text": end}, "end_turn")]


def delegated_answer(result: ToolResult) -> tuple[ContentBlock, ...]:
    """The answer that an agent's result is for the turn that asked it; empty for an error, or if it says nothing."""
    texts = [str(part["text"]) for part in result["content"] if "text" in part]
    if result["status"] == "error" or not any(text.strip() for text in texts):
        return ()
    return tuple({"text": text} for text in texts)


def spoken_answer(text: str) -> Answer:
    """A text in the place of a model's answer."""
    return _known_answer({"text": text}, "end_turn")


def _known_answer(block: ContentBlock, stop_reason: str) -> Answer:
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
        return json_copy(value)
    except TooLarge:
        return f"<<too large to be recorded: {type(value).__qualname__}>>"
    except Invalid:
        return f"<<non-serializable: {type(value).__qualname__}>>"


# The turn that a token names: one decision for every call that takes a token, so that it never stands for another turn.
#
#   what is known of the token         a call with a prompt        a call without one, or a reader
#   nothing                            begins the turn             is refused: nobody knows the turn
#   its call waits to be made          begins the turn             waits for it
#   its call was tried and given up    begins the turn             is refused, with the reason
#   its turn runs, or is queued        shares it                   shares it
#   it is the last turn, unanswered    goes on with it             goes on with it
#   it is the last turn, and its       goes on with it, for a      goes on with it, where its answer was stopped
#   answer was stopped                 whole answer
#   it has no answer, and another      goes on behind the other    is refused: only its prompt begins it again
#   turn began after it
#   it has its answer                  gets the answer             gets the answer
#
# Responses to interrupts name their turn by the ids of its questions: with a token of which nothing is known they go on
# with the last turn, under the token of that one. So does a call without a token and a prompt. A runtime gives a call
# that has no token one for its way to other processes; such a token names the call alone. A turn that has no token gets
# that of the call that goes on with it so.

KnownTurn = Literal["unknown", "posted", "given up", "under way", "open", "stopped", "left behind", "answered"]
"""The state of a token's turn; the rows of the table."""
CallAsks = Literal["prompt", "responses", "nothing"]
"""The content of a call: messages, answers to interrupts, or no message."""
TurnWay = Literal["begin", "share", "go on", "go on behind", "replay", "wait", "fail", "refuse"]
"""The action of a call with a token."""

_WAYS: Mapping[KnownTurn, tuple[TurnWay, TurnWay]] = {
    "unknown": ("begin", "refuse"),
    "posted": ("begin", "wait"),
    "given up": ("begin", "fail"),
    "under way": ("share", "share"),
    "open": ("go on", "go on"),
    "stopped": ("go on behind", "go on"),
    "left behind": ("go on behind", "refuse"),
    "answered": ("replay", "replay"),
}
_CALL = "call-"

NO_SUCH_TURN = (
    "no turn of this token runs, is answered, or was cut short last: say its prompt again with the token; to go on with"
    " another turn, give that one's token, or none"
)


def call_token(random: str) -> str:
    """A token for a call that was given none. `random`: letters and digits that no other call has."""
    return f"{_CALL}{random}"


def is_call_token(token: str) -> bool:
    """True if a call that was given no token has made it up."""
    return token.startswith(_CALL)


def way_of_call(
    token: str | None, known: KnownTurn, asks: CallAsks, *, open_token: str | None = None
) -> tuple[TurnWay, str | None]:
    """The way of a call with this token, and the token of the turn that it concerns.

    `known`: what is known of the token; `unknown` without one. `open_token`: that of the last turn while it has no
    answer; None for a turn without a token.
    """
    # A token that a runtime has made up names a call, so without a prompt it goes on with the last turn like a call
    # without one.
    goes_on = asks == "responses" or (asks == "nothing" and (token is None or is_call_token(token)))
    if known == "unknown" and goes_on:
        return "go on", open_token or token
    return _WAYS[known][0 if asks == "prompt" else 1], token


def steered_content(prompt: UserMessages | InterruptResponses) -> tuple[ContentBlock, ...]:
    """The content of a prompt that is added to a running turn; empty for a prompt that must wait for its own turn."""
    messages = () if isinstance(prompt, InterruptResponses) else prompt.messages
    if any(message["role"] != "user" or any(tool_results(message)) for message in messages):
        return ()
    return tuple(block for message in messages for block in message["content"])


def answered_ids(prompt: UserMessages | InterruptResponses) -> Collection[str]:
    """The ids of the interrupts that this prompt answers."""
    return prompt.responses.keys() if isinstance(prompt, InterruptResponses) else ()


def asks_with(prompt: UserMessages | InterruptResponses) -> CallAsks:
    """The kind of this prompt."""
    if isinstance(prompt, InterruptResponses):
        return "responses"
    return "prompt" if prompt.messages else "nothing"
