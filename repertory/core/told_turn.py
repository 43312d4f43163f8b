"""A turn by its token, as the journal has it: for callers who want to know of it without going on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, get_args

from msgspec import Struct

from repertory.core.json_fields import json_integer, json_list, json_object
from repertory.core.messages import Json, Message
from repertory.core.result import AgentResult, interrupts_in
from repertory.core.turn_log import begun_at

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.image import Image

ToldState = Literal["runs", "asks", "answered", "stopped"]


class AskTurn(Struct, frozen=True):
    """Asks a session what became of the turn of this token; None: the newest that has one."""

    token: str | None
    cancel: bool = False
    """Whether it is cut short first, if it runs."""
    stored: bool = False
    """Whether the answer waits until what it says is durable."""


class ToldTurn(Struct, frozen=True, kw_only=True):
    """What became of a turn so far."""

    token: str
    state: ToldState
    """`runs`: it is under way, or owed by a process that was killed. `asks`: it waits for a person. `answered`: it has
    its answer. `stopped`: it has none, and nobody goes on with it: it failed, was cancelled, or another one followed.
    """
    messages: Sequence[Message] = ()
    """From its prompt on; not those of a turn that stopped and was followed by another."""
    interrupts: Sequence[Interrupt] = ()
    """The questions that wait for a response."""
    position: int = 0
    """The sequence number of the last message of the conversation."""
    newest: bool = True
    """Whether no other turn has begun after it."""
    cancelled: bool = False
    """Whether it was running, and was cut short now, as its caller wanted."""
    agent_state: Mapping[str, Json] = {}
    """The agent's state now."""

    @property
    def result(self) -> AgentResult | None:
        """What a call with the token returns now without running anything; None while it would run."""
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


def told_turn(
    image: Image,
    carried: tuple[str, int],
    said: Sequence[tuple[int, Message]],
    *,
    runs: bool,
    owed: bool,
    cancelled: bool,
) -> ToldTurn:
    """The turn of this token, and of the message that carries it. `said`: the messages around it, by sequence number.
    `runs`: a turn is under way here; `owed`: the session must be woken for one if its owner dies.
    """
    token, first = carried
    waiting, finished = image.interrupts, image.finished_turns.get(token)
    newest = token in image.tokens
    state: ToldState
    if finished is not None and not (newest and runs):
        state = "answered"
    elif not newest:
        state = "stopped"
    else:
        state = "runs" if runs or (owed and not waiting) else "asks" if waiting else "stopped"
    begun = begun_at(said, first)
    last = finished.answer_seq if state == "answered" and finished is not None else image.last_message_seq
    known = newest or finished is not None
    return ToldTurn(
        token=token,
        state=state,
        messages=[message for seq, message in said if begun <= seq <= last] if known else [],
        interrupts=[*waiting] if state == "asks" else [],
        position=image.last_message_seq,
        newest=newest,
        cancelled=cancelled,
        agent_state=image.state,
    )


def told_json(turn: ToldTurn) -> dict[str, Json]:
    """The turn as JSON, bytes as they are."""
    return {
        "token": turn.token,
        "state": turn.state,
        "messages": cast("list[Json]", [*turn.messages]),
        "interrupts": [each.to_dict() for each in turn.interrupts],
        "position": turn.position,
        "newest": turn.newest,
        "cancelled": turn.cancelled,
        "agent_state": dict(turn.agent_state),
    }


def read_told(given: Json) -> ToldTurn:
    """The turn that `told_json` gave. Errors: those in `MALFORMED` of `core/result.py`."""
    fields = json_object(given)
    messages, state = json_list(fields["messages"]), fields["state"]
    if state not in get_args(ToldState):
        raise ValueError(state)
    return ToldTurn(
        token=str(fields["token"]),
        state=cast("ToldState", state),
        messages=cast("list[Message]", messages),
        interrupts=interrupts_in(fields),
        position=json_integer(fields["position"]),
        newest=fields["newest"] is True,
        cancelled=fields["cancelled"] is True,
        agent_state=json_object(fields["agent_state"]),
    )
