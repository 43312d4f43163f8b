"""Questions that tools and hooks ask a person: what they are called, what is asked, what was answered.

The name of a question is its identity: within one tool use (or one step, where a hook asks about all of its tools) the
same name is the same question, before and after a restart. So code that asks runs twice: the first time the question
parks the turn, the second time it has its answer.

Source: the ids are those of the SDK whose users we serve.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import cast
from urllib.parse import quote

from repertory.core.messages import Json, ToolUse
from repertory.core.state import json_copy
from repertory.errors import Invalid

STEP_SCOPE = "v1:before_tools"
"""Of what a hook asks before the tools of a step."""
_OUTCOME = "v1:unknown_outcome:"
_NODE = "v1:before_node_call"
_OID = bytes.fromhex("6ba7b8129dad11d180b400c04fd430c8")
"""The namespace of object identifiers (RFC 9562)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """A question to a person, for whose answer a turn waits.

    Answer it by calling the agent with `[{"interruptResponse": {"interruptId": id, "response": ...}}]`.
    """

    id: str
    name: str
    """As whoever asks calls it."""
    reason: Json = None
    """What the person is to know."""
    response: Json = None
    """The answer; None while there is none."""
    expires_at: float | None = None
    """Epoch seconds from which on nobody may answer any more; None: never."""

    def to_dict(self) -> dict[str, Json]:
        """The same as JSON; `expires_at` stands there only when there is such a time."""
        said: dict[str, Json] = {"id": self.id, "name": self.name, "reason": self.reason, "response": self.response}
        return said if self.expires_at is None else {**said, "expires_at": self.expires_at}

    def is_over(self, now: float) -> bool:
        """Whether nobody may answer any more. `now`: epoch seconds."""
        return self.expires_at is not None and now >= self.expires_at


class InterruptException(Exception):
    """Carries a question out of the tool or hook that asks it. Not an error: let it pass.

    A tool that catches it has asked nothing: whatever it returns then is its result.
    """

    def __init__(self, interrupt: Interrupt, *more: Interrupt) -> None:
        super().__init__(f"a person is asked: {interrupt.name}")
        self.interrupt = interrupt
        self.interrupts = (interrupt, *more)


def question_in(error: Exception) -> InterruptException | None:
    """What is asked, also out of a task group in which nothing but questions came up; None for an error."""
    if isinstance(error, InterruptException):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    inner = [question_in(each) for each in cast("ExceptionGroup[Exception]", error).exceptions]
    asked = {one.id: one for question in inner if question is not None for one in question.interrupts}
    return InterruptException(*asked.values()) if None not in inner else None


def tool_scope(tool_use_id: str) -> str:
    """Of what a tool asks."""
    return f"v1:tool_call:{tool_use_id}"


def hook_scope(tool_use_id: str) -> str:
    """Of what a hook asks before one tool."""
    return f"v1:before_tool_call:{tool_use_id}"


def node_scope(node: str) -> str:
    """Of what a hook asks before a node of an orchestrator."""
    return question_id(_NODE, node)


def is_about_node(interrupt_id: str) -> bool:
    """Whether a hook has asked this before a node, and not the node itself."""
    return interrupt_id.startswith(f"{_NODE}:")


def agent_prefix(tool_use_id: str) -> str:
    """In front of the id of a question that an agent asks while it is a tool of another one."""
    return f"v1:agent_as_tool:{quote(tool_use_id, safe='')}:"


def outcome_id(tool_use_id: str) -> str:
    """Of the question that is asked about a tool of unknown outcome."""
    return f"{_OUTCOME}{tool_use_id}"


def is_about_outcome(interrupt: Interrupt) -> bool:
    """Whether nobody has asked this but the crash of a process."""
    return interrupt.id.startswith(_OUTCOME)


def question_id(scope: str, name: str) -> str:
    """The same for the same name in the same scope. Errors: `Invalid` for what is no name."""
    try:
        if not isinstance(cast("object", name), str) or not name:
            raise Invalid("an interrupt has a name", got=repr(name))
        digest = bytearray(sha1(_OID + name.encode(), usedforsecurity=False).digest()[:16])
    except UnicodeEncodeError as error:
        raise Invalid("an interrupt's name is text that can be written down", got=repr(name)) from error
    digest[6] = digest[6] & 0x0F | 0x50  # A UUID of version 5.
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{scope}:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def held_up(interrupt: Interrupt, uses: Sequence[ToolUse]) -> tuple[str, ...]:
    """The ids of the tool uses that wait for the answer: one, or all of them when the question is about the step."""
    for use in uses:
        use_id = use["toolUseId"]
        own = (question_id(scope, interrupt.name) for scope in (tool_scope(use_id), hook_scope(use_id)))
        if interrupt.id in own or interrupt.id.startswith(agent_prefix(use_id)):
            return (use_id,)
    return tuple(use["toolUseId"] for use in uses)


class Questions:
    """What the tools and hooks of one step may ask, and what was answered before. Safe from any thread."""

    def __init__(self, wall: Callable[[], float], responses: Mapping[str, Json] | None = None) -> None:
        """`wall` gives epoch seconds. `responses`: the answers, by interrupt id."""
        self._wall = wall
        self._responses = dict(responses or {})
        self._asked: dict[str, Interrupt] = {}

    def ask(self, scope: str, name: str, reason: object, response: object, expires_s: float | None) -> Json:
        """The answer: the one that was given, else `response` unless that is None.

        Raises `InterruptException` when there is none yet. Errors: `Invalid` for a name, a time or values that make no
        sense, and for a name that has asked something else in this step.
        """
        interrupt_id = question_id(scope, name)
        told, given = json_copy(reason), json_copy(response)
        wall = self._wall()
        expires_at = None if expires_s is None else wall + _checked(expires_s)
        if interrupt_id in self._responses:
            return copy.deepcopy(self._responses[interrupt_id])
        if given is not None:
            return given
        raise InterruptException(self._noted(Interrupt(id=interrupt_id, name=name, reason=told, expires_at=expires_at)))

    def pass_on(self, interrupts: Iterable[Interrupt]) -> InterruptException:
        """What to raise so that these questions of somebody else are asked."""
        return InterruptException(*[self._noted(interrupt) for interrupt in interrupts])

    def answers_below(self, prefix: str) -> dict[str, Json]:
        """The answers to questions whose id begins so, by the rest of the id."""
        below = {key: value for key, value in self._responses.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): copy.deepcopy(value) for key, value in below.items()}

    def were_asked(self, interrupts: Iterable[Interrupt]) -> bool:
        """Whether all of these were asked here, and nobody made them up."""
        return all(self._asked.get(interrupt.id) is interrupt for interrupt in interrupts)

    def _noted(self, interrupt: Interrupt) -> Interrupt:
        known = self._asked.setdefault(interrupt.id, interrupt)
        if known.reason != interrupt.reason:
            raise Invalid("two questions have the same name; give them different ones", name=interrupt.name)
        return known


def _checked(expires_s: object) -> float:
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float) or not 0 < expires_s < float("inf"):
        raise Invalid("expires_s is a positive number of seconds", got=expires_s)
    return expires_s
