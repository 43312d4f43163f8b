"""Interrupts: questions of tools and hooks to a person, their ids, and their responses.

A question is identified by its name: within one tool use (or one step, for a hook that asks about all tools) the same
name is the same question, also after a restart. So code that asks runs twice: first the question parks the turn, then
the response is there.

The ids of the SDK are made of the tool use's id, which many services of models give again, and of the name. So that an
answer that somebody sends again answers no later question, an id ends with a mark of the step that asks (`step_mark`),
except where programs of the SDK go on with the turns.

Source: the ids are those of the SDK whose users we serve.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2s, sha1
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from msgspec import Struct

from repertory.core.deferral import EXPIRES_S_MAX
from repertory.core.messages import InterruptResponseContent, Json, ToolUse
from repertory.core.state import json_copy
from repertory.errors import Invalid

if TYPE_CHECKING:
    import typing_extensions

    Response = typing_extensions.TypeVar("Response", default=Any)
else:
    Response = TypeVar("Response")

STEP_SCOPE = "v1:before_tools"
"""The scope of a hook's questions before the tools of a step."""
UNKNOWN_OUTCOME = "unknown_tool_outcome"
"""The name of the question whether a tool took effect that was cut off."""
UNKNOWN_STEP = "unknown_step_outcome"
"""The beginning of the name of the question whether a tool's step took effect that was cut off."""
_OUTCOME = "v1:unknown_outcome:"
_NODE = "v1:before_node_call"
INNER_USE = "/"
"""Stands between the id of a tool use and the key of a call that its tool makes: together they are the id of that call
as a tool use.
"""
MAY_ANSWER_MAX = 100
"""The most names of the people who may answer a question."""
_MARK = re.compile(r"~[0-9a-f]{32}\Z")
_OID = bytes.fromhex("6ba7b8129dad11d180b400c04fd430c8")
"""The namespace of object identifiers (RFC 9562)."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question to a person; the turn waits for the answer.

    Answer it by calling the agent with `[interrupt.respond(...)]`.

    Args:
        id: The id that an answer names.
    """

    id: str
    name: str
    """The question's name, given by the asking tool or hook."""
    reason: Json = None
    """The information that the person needs for an answer."""
    response: Json = None
    """The answer; None while there is none."""
    expires_at: float | None = None
    """The time from which on it can no longer be answered, in epoch seconds; None: never."""
    tool: str | None = None
    """The tool whose use waits for the answer; None where no tool waits, or several do."""
    input: Json = None
    """The input of that use."""
    session_id: str | None = None
    """The session in which it is asked; None outside of one."""
    may_answer: tuple[str, ...] = ()
    """The names or roles of the people who may answer; empty: the question does not say. The program that takes
    the answer holds them to it: Repertory does not know who they are.
    """

    def __repr__(self) -> str:
        """The id and name of the question, and whether it is answered, on one line; not its text or answer."""
        from repertory.core.notebook import short_repr  # loaded when used

        return short_repr(self, {"id": self.id, "name": self.name, "answered": self.response is not None})

    @property
    def text(self) -> str:
        """The question in words."""
        return question_words(self.name, self.reason)

    def respond(self, response: object) -> InterruptResponseContent:
        """The answer as a block of a prompt: `agent([interrupt.respond("yes")])`. A prompt may answer several.

        Args:
            response: The answer, as JSON.

        Raises:
            Invalid: For a value that is not JSON. Correct the argument.
        """
        return {"interruptResponse": {"interruptId": self.id, "response": json_copy(response)}}

    def to_dict(self) -> dict[str, Json]:
        """The interrupt as JSON; the last five fields only when they are set."""
        fields: dict[str, Json] = {"id": self.id, "name": self.name, "reason": self.reason, "response": self.response}
        more = {"expires_at": self.expires_at, "tool": self.tool, "input": self.input, "session_id": self.session_id}
        more["may_answer"] = [*self.may_answer] or None
        return fields | {name: value for name, value in more.items() if value is not None}

    def is_over(self, now: float) -> bool:
        """True if it can no longer be answered.

        Args:
            now: Epoch seconds.
        """
        return self.expires_at is not None and now >= self.expires_at


class InterruptException(Exception):
    """Carries a question out of the tool or hook that asks it. Not an error: let it pass.

    A tool that catches it has asked nothing: what it then returns is its result.

    Args:
        interrupt: The first question.
        more: Further questions of the same step.

    Attributes:
        interrupts: All of them, in the order asked.
    """

    def __init__(self, interrupt: Interrupt, *more: Interrupt) -> None:
        super().__init__(f"a person is asked: {interrupt.name}")
        self.interrupt = interrupt
        self.interrupts = (interrupt, *more)


def question_words(name: str, reason: Json) -> str:
    """A question in words."""
    if reason is None:
        return name
    if isinstance(reason, dict) and (name == UNKNOWN_OUTCOME or name.startswith(f"{UNKNOWN_STEP}:")):
        use = f"{reason.get('tool')}({json.dumps(reason.get('input'), ensure_ascii=False)})"
        use = use if name == UNKNOWN_OUTCOME else f"step {reason.get('step')} of {use}"
        answers = '"retry", "fail" or {"result": ...}'
        return f"{use} was cut off, and nobody knows whether it took effect; the answer is {answers}"
    return f"{name}: {reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)}"


def questions_in_words(interrupts: Sequence[Interrupt]) -> str:
    """The questions in words, each of several on a line with its number."""
    if len(interrupts) == 1:
        return interrupts[0].text
    return "\n".join(f"{number}. {each.text}" for number, each in enumerate(interrupts, 1))


def is_yes(answer: object) -> bool:
    """True if a person's answer is a yes: True, or the text `y` or `yes`. Anything else is a no: an answer
    that nobody understands must allow nothing.
    """
    return answer is True or (isinstance(answer, str) and answer.strip().lower() in ("y", "yes"))


def question_in(error: Exception) -> InterruptException | None:
    """The questions in an exception, also in a task group that raised nothing but questions; None for an error."""
    if isinstance(error, InterruptException):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    inner = [question_in(each) for each in cast("ExceptionGroup[Exception]", error).exceptions]
    asked = {one.id: one for question in inner if question is not None for one in question.interrupts}
    # An error beside a question is an error: the person would be asked in vain.
    return InterruptException(*asked.values()) if None not in inner else None


def tool_scope(tool_use_id: str) -> str:
    """The scope of a tool's questions."""
    return f"v1:tool_call:{tool_use_id}"


def hook_scope(tool_use_id: str) -> str:
    """The scope of a hook's questions before one tool."""
    return f"v1:before_tool_call:{tool_use_id}"


def middleware_scope(tool_use_id: str) -> str:
    """The scope of middleware's questions about one tool use."""
    return f"v1:middleware_execute_tool:{tool_use_id}"


def node_scope(node: str) -> str:
    """The scope of a hook's questions before a node of an orchestrator."""
    return question_id(_NODE, node)


def is_about_node(interrupt_id: str) -> bool:
    """True if a hook asked this before a node, and not the node itself."""
    return interrupt_id.startswith(f"{_NODE}:")


def agent_prefix(tool_use_id: str) -> str:
    """The prefix of ids of questions from an agent that runs as a tool of another one."""
    return f"v1:agent_as_tool:{quote(tool_use_id, safe='')}:"


def outcome_id(tool_use_id: str) -> str:
    """The id of the question about a tool of unknown outcome, without its mark."""
    return f"{_OUTCOME}{tool_use_id}"


def step_mark(*asking: object) -> str:
    """The mark of a step that asks. `asking`: JSON values that no other step has together."""
    text = json.dumps(asking, sort_keys=True).encode()
    return blake2s(text, digest_size=16).hexdigest()


def marked(interrupt_id: str, mark: str) -> str:
    """The id with the mark of the step that asks; empty for none."""
    return f"{interrupt_id}~{mark}" if mark else interrupt_id


def unmarked(interrupt_id: str) -> str:
    """The id without the mark at its end, if it has one."""
    return _MARK.sub("", interrupt_id)


def is_passed_on(inner: Interrupt, outer: Interrupt) -> bool:
    """True if the second question is the first one, as the caller of the asking agent passes it on."""
    within = (inner.id, _inner(inner.id))
    return inner.id != outer.id and outer.name == inner.name and any(f":{one}" in outer.id for one in within)


def is_outcome_id(interrupt_id: str) -> bool:
    """True if this is the id of a question that a crash raised."""
    return interrupt_id.startswith(_OUTCOME)


def is_about_outcome(interrupt: Interrupt) -> bool:
    """True if a crash raised this question, and no tool or hook."""
    return is_outcome_id(interrupt.id)


def question_id(scope: str, name: str) -> str:
    """An id, always the same for one name in one scope. Errors: `Invalid` for an invalid name."""
    try:
        if not isinstance(cast("object", name), str) or not name:
            raise Invalid("an interrupt has a name", got=repr(name))
        digest = bytearray(sha1(_OID + name.encode(), usedforsecurity=False).digest()[:16])
    except UnicodeEncodeError as error:
        raise Invalid("an interrupt's name is text that can be written down", got=repr(name)) from error
    # By hand: `core` may not import `uuid`, whose other functions give random ids (a contract in pyproject.toml).
    digest[6] = digest[6] & 0x0F | 0x50  # A UUID of version 5.
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{scope}:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def ids_by_name(interrupts: Iterable[Interrupt]) -> dict[str, str]:
    """The ids of these questions by their ids without a mark."""
    return {unmarked(one.id): one.id for one in interrupts}


def held_up(interrupt: Interrupt, uses: Sequence[ToolUse]) -> tuple[str, ...]:
    """The ids of the tool uses that wait for the answer: one, or all of them for a question about the step."""
    for use in uses:
        use_id = use["toolUseId"]
        scopes = (tool_scope(use_id), hook_scope(use_id), middleware_scope(use_id))
        own = (question_id(scope, interrupt.name) for scope in scopes)
        agent = agent_prefix(use_id)
        # Those of a tool that this one calls, too.
        within = (*(f"{scope}{INNER_USE}" for scope in scopes), f"{agent[:-1]}{quote(INNER_USE, safe='')}")
        if unmarked(interrupt.id) in own or interrupt.id.startswith((agent, *within)):
            return (use_id,)
    return tuple(use["toolUseId"] for use in uses)


def response_as(model: type[Response] | None, response: Json, name: str) -> Response:
    """The response as an object of that type; None leaves it as it is. Errors: `Invalid` for one that is none."""
    if model is None:
        return cast("Response", response)
    from pydantic import TypeAdapter, ValidationError  # loaded when used

    try:
        return TypeAdapter(model).validate_python(response)
    except ValidationError as error:
        wrong = "; ".join(each["msg"] for each in error.errors())
        raise Invalid(f"the person's answer is not what was asked for: {wrong}", name=name) from error


def asked_about(
    interrupts: Iterable[Interrupt], uses: Sequence[ToolUse], session_id: str | None
) -> tuple[Interrupt, ...]:
    """The questions of a step with these tool uses, each with the one that it is about, and with their session."""
    return tuple(_about(one, uses, session_id) for one in interrupts)


def _about(interrupt: Interrupt, uses: Sequence[ToolUse], session_id: str | None) -> Interrupt:
    held = held_up(interrupt, uses)
    found = [
        use for use in uses if held == (use["toolUseId"],) or unmarked(interrupt.id) == outcome_id(use["toolUseId"])
    ]
    reason = interrupt.reason
    if interrupt.tool is None and interrupt.name.startswith(f"{UNKNOWN_STEP}:") and isinstance(reason, dict):
        # The step may be a call of another tool.
        interrupt = replace(interrupt, tool=str(reason.get("tool")), input=reason.get("input"))
    elif interrupt.tool is None and len(found) == 1:
        interrupt = replace(interrupt, tool=found[0]["name"], input=found[0]["input"])
    return replace(interrupt, session_id=interrupt.session_id or session_id)


class Questions(Struct, eq=False):
    """The questions that the tools and hooks of one step may ask, and the responses so far. Safe from any thread."""

    wall: Callable[[], float]
    """The clock, which returns epoch seconds."""
    responses: Mapping[str, Json] = {}
    """The responses so far, by interrupt id."""
    asked: dict[str, Interrupt] = {}
    """The questions asked in this step, by interrupt id."""
    mark: Callable[[], str] = str
    """Returns the mark of the step; empty for none. Called when there is a question: most steps have none."""
    known: Mapping[str, str] = {}
    """The ids of questions that were asked before, in this step, by their ids without a mark: they keep them, also in a
    fork and in a journal that another program began.
    """
    step: Callable[[], object] = str
    """Returns the step among all steps of all conversations; the same when it goes on. Empty where none is recorded."""

    def ask(
        self,
        scope: str,
        name: str,
        reason: object,
        response: object,
        expires_s: float | None = None,
        may_answer: Sequence[str] = (),
    ) -> Json:
        """The response if there is one, else `response` unless that is None.

        Raises `InterruptException` when there is none. Errors: `Invalid` for an invalid name, time or value, and for a
        name that asked something else in this step.
        """
        interrupt_id = self._id(question_id(scope, name))
        reason_json, given = json_copy(reason), json_copy(response)
        wall = self.wall()
        expires_at, people = None if expires_s is None else wall + _checked(expires_s), _named(may_answer)
        if interrupt_id in self.responses:
            return copy.deepcopy(self.responses[interrupt_id])
        if given is not None:
            return given
        raise InterruptException(
            self._noted(
                Interrupt(id=interrupt_id, name=name, reason=reason_json, expires_at=expires_at, may_answer=people)
            )
        )

    def pass_on(self, prefix: str, interrupts: Iterable[Interrupt]) -> InterruptException:
        """The exception to raise for another agent's questions. Their ids here begin with `prefix`."""
        ours = [replace(one, id=self._id(f"{prefix}{_inner(one.id)}")) for one in interrupts]
        return InterruptException(*[self._noted(interrupt) for interrupt in ours])

    def answers_below(self, prefix: str) -> dict[str, Json]:
        """The responses to questions whose id begins with `prefix`, by the rest of the id."""
        below = {key: value for key, value in self.responses.items() if key.startswith(prefix)}
        return {_outer(unmarked(key).removeprefix(prefix)): copy.deepcopy(value) for key, value in below.items()}

    def name_tool(self, interrupts: Iterable[Interrupt], tool: str, value: Json) -> list[Interrupt]:
        """The same questions as being about a call of this tool with this input: one that a running tool makes, which
        is no tool use of the message.
        """
        named: list[Interrupt] = []
        for one in interrupts:
            is_new = one.tool is None and self.asked.get(one.id) is one
            named.append(replace(one, tool=tool, input=value) if is_new else one)
            if is_new:
                self.asked[one.id] = named[-1]
        return named

    def were_asked(self, interrupts: Iterable[Interrupt]) -> bool:
        """True if all of these were asked here, and were not made up by the caller."""
        return all(self.asked.get(interrupt.id) is interrupt for interrupt in interrupts)

    def _id(self, interrupt_id: str) -> str:
        return self.known.get(interrupt_id) or marked(interrupt_id, self.mark())

    def _noted(self, interrupt: Interrupt) -> Interrupt:
        known = self.asked.setdefault(interrupt.id, interrupt)
        if known.reason != interrupt.reason:
            raise Invalid("two questions have the same name; give them different ones", name=interrupt.name)
        return known


def _inner(interrupt_id: str) -> str:
    """Another agent's id as a part of one of ours, whose own mark must be the only one."""
    return interrupt_id.replace("%", "%25").replace("~", "%7E")


def _outer(interrupt_id: str) -> str:
    return interrupt_id.replace("%7E", "~").replace("%25", "%")


def _checked(expires_s: object) -> float:
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float) or not 0 < expires_s <= EXPIRES_S_MAX:
        raise Invalid("expires_s is a positive number of seconds, 1e9 at most", got=expires_s)
    return float(expires_s)


def _named(people: object) -> tuple[str, ...]:
    # A text is a sequence of texts as well: one name alone would become its letters.
    named = [*cast("Sequence[object]", people)] if isinstance(people, list | tuple) else [None]
    names = tuple(one for one in named if isinstance(one, str) and one)
    if len(names) != len(named) or len(named) > MAY_ANSWER_MAX:
        raise Invalid(f"may_answer is a list of names or roles, {MAY_ANSWER_MAX} at most", got=str(named)[:200])
    return names
