"""Opening an agent: the rows that are stored, and those that follow from what others have written meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from repertory.core.interrupt_state import asks_somebody
from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    Record,
    Resumed,
    StateChanged,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.journal.standing import standing_of
from repertory.core.message_tree.adoption import adopt, adopt_agent, mended
from repertory.core.message_tree.assembly import Assembled
from repertory.core.message_tree.documents import AgentFile
from repertory.core.messages import Message, tool_results


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An agent's journal as it was found, and what follows from what others have written."""

    found: Sequence[Row]
    """The rows that are stored, as far as they were read."""
    made: Sequence[Row]
    """The rows that are to be stored."""
    files: Mapping[int, tuple[int, Message]]
    """Of the rows made: sequence number to the document that shows the message, and the message."""
    fold: Fold

    def needed(self) -> list[Row]:
        """The rows from the last one's `low` on."""
        return needed_of([*self.found, *self.made])


class Due(NamedTuple):
    """Why an agent's document is to be written anew."""

    state: bool = False
    """Its state has changed, or whether the turn waits for a person."""
    view: bool = False
    """What is shown has changed, which is told when the session is given up."""


def due_after(record: Record | None, *, asks: bool, manager: str) -> Due:
    """What a record changes of the agent's document. `asks`: whether that says that the turn waits for a person.
    `manager`: the conversation manager that it names.
    """
    renamed = manager_in(record) not in ("", manager)
    match record:
        case StateChanged() | Branched() | Interrupted() | Resumed():
            return Due(state=True)
        case ViewChanged():
            return Due(state=renamed, view=True)
        case MessageAdded(view=view):
            return Due(state=asks or renamed, view=view is not None)
        case _:
            return Due()


def manager_in(record: Record | None) -> str:
    """The conversation manager that a record names; empty for none."""
    match record:
        case ViewChanged(view=view) | MessageAdded(view=View() as view):
            return view.manager
        case _:
            return ""


def outdated(agent: AgentFile, fold: Fold) -> bool:
    """Whether the agent's document names another manager than the journal, or is wrong about whether the turn waits for
    a person: somebody was cut off before it was told.
    """
    named = fold.shown.view.manager
    misnamed = bool(named) and agent.manager.get("__name__") != named
    return misnamed or agent.asks != asks_somebody(standing_of(fold))


def needed_of(rows: Sequence[Row]) -> list[Row]:
    """The rows from the last one's `low` on."""
    return list(rows[max(rows[-1].low - rows[0].seq, 0) :]) if rows else []


def open_agent(
    names: tuple[str, str],
    found: Assembled,
    numbers: Sequence[int],
    agent: AgentFile | None,
    at: float,
    entropy: Entropy,
) -> Opened:
    """Rows for edits, then for messages that were added, then for the agent's document.

    `names`: of the session and of the agent. `numbers`: of the documents of messages, in order, without those of a
    commit that was cut off. Rows that begin after the last one's `low` are all that is left: what was said before is
    gone, and stated anew as far as the agent's document says it.
    """
    session_id, agent_id = names
    rows = [*found.rows]
    made = mended(rows, found.faults, at, entropy)
    rows += made
    needed = needed_of(rows)
    gone = bool(rows) and rows[0].seq > rows[-1].low
    fold = _fold_of(needed, gone, session_id)
    appender = Appender(agent_id, fold, rows[-1].link if rows else None, entropy)
    adopted = adopt(appender, found.added, at)
    made += adopted.rows
    if gone:
        left = agent or AgentFile(state={}, manager={}, model_state={}, created_at="", foreign=False)
        state = {**left.state, **fold.state}
        left = replace(left, state=state)
        made += adopt_agent(appender, left, _first_prompt(fold), at, first_turn=False)
    elif agent is not None and agent.foreign:
        files = adopted.files.items()
        places = {**found.numbers, **{seq: number for seq, (number, _) in files}}
        shown_from = _shown_from(agent, numbers, places, fold.last_seq)
        made += adopt_agent(appender, agent, shown_from, at, first_turn=not found.rows)
    return Opened(found=found.rows, made=made, files=adopted.files, fold=fold)


def _fold_of(needed: Sequence[Row], gone: bool, session_id: str) -> Fold:
    if gone and len(needed) == 1:  # It is there for its link only.
        return Fold(Image(last_seq=needed[0].seq), partial=True)
    return restore(needed, session_id=session_id).fold


def _first_prompt(fold: Fold) -> int:
    """The first message that is left, is shown, and can be the first that a model is shown."""
    for seq, message in fold.shown.recent:
        if message["role"] == "user" and not any(tool_results(message)):
            return seq
    return fold.last_seq + 1


def _shown_from(agent: AgentFile, numbers: Sequence[int], places: Mapping[int, int], last_seq: int) -> int | None:
    """The first message that somebody else shows, by its row; None when that lies before the rows that are known."""
    removed = agent.manager.get("removed_message_count")
    if not isinstance(removed, int) or removed <= 0 or not numbers:
        return None
    if removed >= len(numbers):
        return last_seq + 1
    first = numbers[removed]
    seqs = [seq for seq, number in places.items() if number >= first]
    return min(seqs) if seqs and first >= min(places.values()) else None
