"""Nodes that others have left waiting for a person, as the document of their run keeps them, conversation and all.

    {"interrupts": {ID: INTERRUPT}, "activated": true, "context": {
        NODE: {"from_hook", "interrupt_ids", "interrupt_state", "state", "messages"}}}    of a graph
        NODE: {"activated", "interrupt_state", "state", "messages"}}}                     of a swarm

A node that a hook asked about had not begun, so there is no conversation to go on with. One that is an orchestrator has
kept nothing to go on with, and owes its work from the beginning.

Source: the documented session layout, as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.interrupt_state import questions_in, read_state
from repertory.core.messages import tool_results
from repertory.core.pairing import read_message

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftWaiting:
    """A node that waits."""

    interrupts: tuple[Interrupt, ...]
    """What it waits for."""
    agent: Mapping[str, Json] | None = None
    """What a snapshot would say of its agent; None when it had not begun."""


def left_waiting(state: Json, visits: Mapping[str, int]) -> dict[str, LeftWaiting]:
    """The nodes that wait and can be gone on with, by name. `state`: the `interrupt_state` of the document; `visits`:
    how often each node has done its work.

    Errors: `TypeError` and `Invalid` for what nobody can read.
    """
    said = _fields(state)
    if not said.get("activated"):
        return {}
    asked = {one.id: one for one in questions_in(said) if one.response is None}
    found: dict[str, LeftWaiting] = {}
    for node, kept in _fields(said.get("context")).items():
        if not isinstance(kept, dict) or not ("interrupt_ids" in kept or "activated" in kept):
            continue
        ids = kept.get("interrupt_ids", list(asked))
        interrupts = tuple(asked[each] for each in cast("list[str]", ids) if each in asked)
        begun = not kept["from_hook"] if "from_hook" in kept else bool(kept.get("activated"))
        agent = _agent(kept, visits.get(node, 0)) if begun else None
        if interrupts and (agent is not None or not begun):
            found[node] = LeftWaiting(interrupts=interrupts, agent=agent)
    return found


def _agent(kept: Mapping[str, Json], visit: int) -> Mapping[str, Json] | None:
    """What is kept of an agent that waits among its tools; None when it does not."""
    messages = [read_message(each) for each in cast("list[object]", kept.get("messages") or [])]
    state = _fields(kept.get("interrupt_state"))
    if not read_state(state, messages[-1] if messages else None).waiting:
        return None
    said = {
        "type": "agent",
        "messages": messages,
        "state": _fields(kept.get("state")),
        "interrupt_state": state,
        "turn": {"visit": visit, "messages": _of_last_turn(messages)},
    }
    return cast("Mapping[str, Json]", said)


def _of_last_turn(messages: Sequence[Message]) -> int:
    """How many of them belong to the turn that was begun last."""
    asks = (place for place, said in enumerate(messages) if said["role"] == "user" and not any(tool_results(said)))
    return len(messages) - max(asks, default=0)


def _fields(value: Json) -> dict[str, Json]:
    """The same, known to be an object; nothing is an empty one. Errors: `TypeError`."""
    if value is not None and not isinstance(value, dict):
        raise TypeError(value)
    return value or {}
