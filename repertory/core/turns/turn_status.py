"""A turn by its token, and what a conversation has left unfinished: for callers who want to know of it, or come back to
it, such as the client of a service that was restarted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from repertory.core.interrupts import Interrupt, asked_about
from repertory.core.journal.steps import reports_in
from repertory.core.json_fields import json_integer, json_list, json_object
from repertory.core.messages import Json, Message, copy_message, tool_uses
from repertory.core.result import AgentResult, interrupts_in
from repertory.core.turn_log import begun_at
from repertory.core.turns.activity import AT_REST, Activity, activity_of, agent_facts

if TYPE_CHECKING:
    from repertory.core.deferral import DeferredTool
    from repertory.core.journal.image import Image
    from repertory.core.journal.pending_tools import PendingTools
    from repertory.core.memory.progress import JournaledMessage

PendingReason = Literal["runs", "cut short", "asks", "store", "waits for a tool"]
"""The activities (`core/turns/activity.py`) of a session with something unfinished."""
TurnStatusName = Literal["runs", "asks", "answered", "stopped"]


class AskTurn(Struct, frozen=True, tag_field="what", tag="turn"):
    """A request for the status of the turn of this token; None: of the newest that has one."""

    token: str | None
    cancel: bool = False
    """True to cut the turn short first, if it runs."""
    stored: bool = False
    """True to wait with the answer until what it reports is durable."""


class TurnStatus(Struct, frozen=True, kw_only=True):
    """The status of a turn: its state and its messages so far. Of a run of a graph or swarm: `KnownRun`."""

    token: str
    state: TurnStatusName
    """`runs`: it is under way, or owed by a process that was killed. `asks`: it waits for a person. `answered`: it has
    its answer. `stopped`: it has none, and nobody goes on with it: it failed, was cancelled, or another one followed.
    """
    messages: Sequence[Message] = ()
    """The messages from the prompt on; none of a turn that stopped and was followed by another."""
    interrupts: Sequence[Interrupt] = ()
    """The questions that wait for a response."""
    position: int = 0
    """The sequence number of the last message of the conversation."""
    newest: bool = True
    """True if no other turn has begun after it."""
    cancelled: bool = False
    """True if it was running, and was cut short now, as its caller wanted."""
    agent_state: Mapping[str, Json] = {}
    """The agent's state now."""
    at: float = 0.0
    """Epoch seconds of the last of `messages`; 0 without any."""
    turn: str = ""
    """The first token of the turn, which it has from its prompt: later calls that get its answer have others."""
    names: Sequence[str] = ()
    """All tokens that the session knows, those of the newest turns last."""
    reports: Sequence[str] = ()
    """The reports of tools that have no result yet, also of those in the background: see `ToolContext.report`."""

    @property
    def result(self) -> AgentResult | None:
        """The result that a call with the token returns now without running anything; None while it would run."""
        if self.state == "asks":
            return AgentResult(stop_reason="interrupt", message=None, interrupts=[*self.interrupts], replayed=True)
        if self.state != "answered" or not self.messages:
            return None
        return AgentResult(stop_reason="end_turn", message=self.messages[-1], replayed=True)


def first_message(image: Image, token: str | None) -> tuple[str, int] | None:
    """The token, and the message that carries it; None for a turn that is not known. `token`: None for the newest."""
    if token is None:
        return image.token
    if token in image.tokens:
        return token, image.tokens[token]
    turn = image.finished_turns.get(token) or image.unanswered.get(token)
    return None if turn is None else (token, turn.seq)


def turn_status(
    image: Image,
    carried: tuple[str, int],
    messages: Sequence[JournaledMessage],
    *,
    runs: bool,
    pending: bool,
    cancelled: bool,
) -> TurnStatus:
    """The turn of this token, and of the message that carries it. `messages`: the messages around it.
    `runs`: a turn is under way here; `pending`: the session must be woken for one if its owner dies.
    """
    token, first = carried
    waiting, finished = image.interrupts, image.finished_turns.get(token)
    newest = token in image.tokens
    state: TurnStatusName
    if finished is not None and not (newest and runs):
        state = "answered"
    elif not newest:
        state = "stopped"
    else:
        state = "runs" if runs or (pending and not waiting) else "asks" if waiting else "stopped"
    begun = begun_at([(each.seq, each.message) for each in messages], first)
    uses = [] if image.last_message is None else [*tool_uses(image.last_message)]
    last = finished.answer_seq if state == "answered" and finished is not None else image.last_message_seq
    # Of a turn that was left behind, nobody knows any more where it ended.
    known = newest or finished is not None
    own = [each for each in messages if known and begun <= each.seq <= last]
    return TurnStatus(
        token=token,
        state=state,
        messages=[copy_message(each.message) for each in own],
        interrupts=[*asked_about(waiting, uses, None)] if state == "asks" else [],
        position=image.last_message_seq,
        newest=newest,
        cancelled=cancelled,
        agent_state=image.state,
        at=own[-1].at if own else 0.0,
        turn=_first_token(image, token),
        names=[*image.unanswered, *image.finished_turns, *image.tokens],
        reports=reports_in({**image.steps, **image.run_steps}) if newest else [],
    )


def _first_token(image: Image, token: str) -> str:
    """The first token of the turn that has this one."""
    if token in image.tokens:
        return next(iter(image.tokens))
    finished, begun = image.finished_turns.get(token), image.unanswered.get(token)
    if finished is not None:
        return next(one for one, turn in image.finished_turns.items() if turn.answer_seq == finished.answer_seq)
    return next((one for one, turn in image.unanswered.items() if begun is not None and turn.left == begun.left), token)


def turn_status_json(turn: TurnStatus) -> dict[str, Json]:
    """The turn as JSON, bytes as they are."""
    asked = [each.to_dict() for each in turn.interrupts]
    lists = cast("dict[str, Json]", {"messages": [*turn.messages], "interrupts": asked})
    return {
        **asdict(turn),
        **lists,
        "agent_state": dict(turn.agent_state),
        "names": [*turn.names],
        "reports": [*turn.reports],
    }


def read_turn_status(given: Json) -> TurnStatus:
    """The turn that `turn_status_json` gave. Errors: those in `MALFORMED` of `core/result.py`."""
    fields = json_object(given)
    messages, state = json_list(fields["messages"]), fields["state"]
    if state not in get_args(TurnStatusName):
        raise ValueError(state)
    return TurnStatus(
        token=str(fields["token"]),
        state=cast("TurnStatusName", state),
        messages=cast("list[Message]", messages),
        interrupts=interrupts_in(fields),
        position=json_integer(fields["position"]),
        newest=fields["newest"] is True,
        cancelled=fields["cancelled"] is True,
        agent_state=json_object(fields["agent_state"]),
        at=cast("float", fields["at"]),
        turn=str(fields["turn"]),
        names=[str(name) for name in json_list(fields["names"])],
        reports=[str(text) for text in json_list(fields.get("reports", []))],  # An older process tells none.
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A turn that has no answer yet, an answer that is not stored yet, or tools whose results come later."""

    why: PendingReason
    """`runs`: it is under way. `cut short`: its process ended, it failed, or it was stopped; a call without a prompt
    goes on with it. `asks`: it waits for a person, whose responses go on with it. `store`: it waits for its store,
    which takes nothing now. `waits for a tool`: its turns are over, a prompt may come at any time, and so may the
    results of `tools`. Without any, a turn is about to tell results that have come.
    """
    interrupts: Sequence[Interrupt] = ()
    """The questions that wait for a response, in the order asked."""
    tools: Sequence[DeferredTool] = ()
    """The tools that wait for results which come later, whatever else is unfinished."""


def pending_turn(
    pending: PendingTools,
    deferred: Mapping[str, DeferredTool],
    *,
    session_id: str | None,
    runs: bool,
    behind: bool,
    untold: bool = False,
) -> PendingTurn | None:
    """The unfinished work; None for nothing. `deferred`: the tools that wait, by id; `runs`: a call is served now;
    `behind`: the store refuses what was said; `untold`: results have come that a turn is about to tell.
    """
    tools = tuple(deferred.values())
    found = activity_of(replace(agent_facts(pending, tools, untold=untold), runs=runs, behind=behind))
    if found in AT_REST:
        return None
    interrupts = pending.waiting_in(session_id) if found in (Activity.STORE, Activity.ASKS) else ()
    return PendingTurn(why=cast("PendingReason", found.value), interrupts=interrupts, tools=tools)
