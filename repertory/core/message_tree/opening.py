"""New rows for what other programs wrote: added messages, state, how much is shown, and runs.

Each change becomes a record, once. What breaks the pairing rule is repaired in the record, with the reason; the
document stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.fold import Fold, is_answer
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Record,
    Resumed,
    StateChanged,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import Appender, Entropy, restore
from repertory.core.journal.rows import Row
from repertory.core.message_tree.documents import AgentFile, FoundMessage, RunFile
from repertory.core.messages import (
    LOST_TEXT,
    ContentBlock,
    Json,
    Message,
    check_next,
    repair,
    repair_stored_message,
    tool_results,
    tool_uses,
)
from repertory.core.messages import repair_message as well_formed
from repertory.core.orchestration.document import records_from
from repertory.core.orchestration.run import RUN, Run
from repertory.core.provider_parts import with_texts_of_parts
from repertory.core.turns.interrupt_state import asks_somebody, read_state, records_between
from repertory.core.window.decision import own_state
from repertory.errors import Invalid, UnpairedTools


class Due(NamedTuple):
    """The reasons for which an agent's document must be rewritten."""

    state: bool = False
    """True if the state changed, or whether the turn waits for a person: rewrite it at once."""
    view: bool = False
    """True if the messages shown changed: rewrite it when the session is released."""


def due_after(record: Record | None, *, asks: bool, manager: str) -> Due:
    """The changes that a record makes to the agent's document. `asks`: True if the document says that the turn waits
    for a person; `manager`: the manager it names.
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
    """True if the agent's document names another manager than the journal, or is wrong about whether the turn waits:
    the writer was cut off before the update.
    """
    named = fold.shown.view.manager
    wrong_manager = bool(named) and agent.manager.get("__name__") != named
    return wrong_manager or agent.asks != asks_somebody(pending_tools_of(fold))


def needed_of(rows: Sequence[Row]) -> list[Row]:
    """The rows from the last one's `low` on."""
    return list(rows[max(rows[-1].low - rows[0].seq, 0) :]) if rows else []


def first_visible_seq(agent: AgentFile, numbers: Sequence[int], places: Mapping[int, int], last_seq: int) -> int | None:
    """The first message that the other program shows, as a sequence number; None when it is before the known rows."""
    removed = agent.manager.get("removed_message_count")
    # Written by any program, so anything may stand there.
    if not isinstance(removed, int) or removed <= 0 or not numbers:
        return None
    if removed >= len(numbers):
        return last_seq + 1
    first = numbers[removed]
    seqs = [seq for seq, number in places.items() if number >= first]
    return min(seqs) if seqs and first >= min(places.values()) else None


class Adopted(Struct, frozen=True, kw_only=True):
    """New rows for what other programs wrote."""

    rows: Sequence[Row]
    numbers: Mapping[int, int]
    """Sequence number of a row to the number of the document that shows its message as it is."""


def adopt(appender: Appender, added: Sequence[tuple[int, FoundMessage]], at: float) -> Adopted:
    """The rows for messages that other programs added, in order. `at` replaces unknown times."""
    rows: list[Row] = []
    numbers: dict[int, int] = {}
    for number, read in added:
        if read.message is None:
            continue
        repaired = well_formed(read.message)
        for message, why in _fitting(appender.fold.last_message, repaired):
            if why is None and repaired is not read.message:
                why = "blocks of wrong types stand as text"
            row = _added(appender, message, why, read.at or at)
            if row is None:
                continue
            rows.append(row)
            if why is None:
                numbers[row.seq] = number
    return Adopted(rows=rows, numbers=numbers)


def adopt_agent(
    appender: Appender, found: AgentFile, visible_from: int | None, at: float, *, first_turn: bool
) -> list[Row]:
    """The rows for an agent's document that another program wrote: state, view and interrupts.

    `visible_from`: the sequence number of the first message shown; None when it is before the known rows. `first_turn`:
    no row of ours exists, so all of the document is new.
    """
    rows: list[Row] = []
    fold = appender.fold
    # A new session without state: an empty record would say nothing.
    if dict(found.state) != dict(fold.state) and (found.state or not first_turn):
        rows.append(appender.append(StateChanged(at=at, full=dict(found.state))))
    view = fold.shown.view
    summary = found.manager.get("summary_message")
    try:
        new_summary = repair_stored_message(summary) if summary is not None else None
    except Invalid:
        new_summary = None
    # A view only moves forward: what was dropped once cannot be shown after a restart.
    first = max(view.first_shown, visible_from or 0)
    own = own_state(found.manager)
    other = bool(own) and own != own_state(view.manager_state)
    if new_summary is not None and view.summary is not None and new_summary == with_texts_of_parts(view.summary):
        new_summary = view.summary  # Parts that only its provider can read are in no document.
    if first != view.first_shown or (new_summary is not None and new_summary != view.summary) or other:
        manager, calls = found.manager.get("__name__"), found.manager.get("model_call_count")
        changed = replace(
            view,
            first_shown=first,
            replaced={seq: message for seq, message in view.replaced.items() if seq >= first},
            hidden=tuple(seq_range for seq_range in view.hidden if seq_range[1] >= first),
            summary=new_summary or view.summary,
            manager=manager if isinstance(manager, str) else view.manager,
            manager_state={
                **own,
                "removed_message_count": found.manager.get("removed_message_count", 0),
                "model_call_count": calls if isinstance(calls, int) else 0,
            },
        )
        rows.append(appender.append(ViewChanged(at=at, view=changed, reason="shown elsewhere")))
    return rows + adopt_questions(appender, found.interrupts, at)


def adopt_questions(appender: Appender, found: Mapping[str, Json], at: float) -> list[Row]:
    """The rows for a turn that waits for a person in a document (`core/turns/interrupt_state.py`). Empty when it is
    malformed.
    """
    fold = appender.fold
    try:
        wanted = read_state(found, fold.last_message)
    except Invalid:
        return []
    return appender.append_all(list(records_between(pending_tools_of(fold), wanted, at)))


def _added(appender: Appender, message: Message, why: str | None, at: float) -> Row | None:
    fold = appender.fold
    last = fold.last_message
    begins = message["role"] == "user" and not any(tool_results(message))
    # Behind a tool use, a message of the user belongs to the turn that asked.
    begins = begins and (last is None or is_answer(last) or last["role"] == "user")
    turn = fold.turns + 1 if begins else max(1, fold.turns)
    record = MessageAdded(at=at, message=message, turn=turn, index=fold.message_count, repaired=why)
    try:
        return appender.append(record)
    except Invalid:
        return None


def _fitting(previous: Message | None, message: Message) -> list[tuple[Message, str | None]]:
    """The message, and what must stand before it, so that they may follow `previous`; with a reason where repaired."""
    asks: list[ContentBlock] = [{"toolUse": use} for use in tool_uses(previous)] if previous is not None else []
    asking: list[Message] = [{"role": "assistant", "content": asks}] if asks else []
    fitting: list[tuple[Message, str | None]] = []
    for each in repair([*asking, message])[len(asking) :]:
        why = None if each == message else "tool uses and results were not paired"
        try:
            check_next(previous, each)
        except UnpairedTools:
            each, why = _without_tools(each), "its tools could not be paired"
        fitting.append((each, why))
        previous = each
    return fitting


def _without_tools(message: Message) -> Message:
    others = [block for block in message["content"] if "toolUse" not in block and "toolResult" not in block]
    if others:
        return {**message, "content": others}
    fields = {name: value for name, value in message.items() if name != "metadata"}  # A filler has no usage.
    return cast("Message", {**fields, "content": [{"text": LOST_TEXT}]})


_TAKEN_IN = "document"
"""A key in a run's record: the digest of the document it was made from, so that one document makes one run."""


def open_run(
    names: tuple[str, str], found: Sequence[Row], document: RunFile | None, at: float, entropy: Entropy
) -> list[Row]:
    """The rows that follow an orchestrator's journal for the run that another program wrote. `names`: of session and
    journal.

    Errors: `CorruptJournal` for the rows; `Corrupt` for a malformed document.
    """
    session_id, journal = names
    restored = restore(needed_of(found), session_id=session_id)
    fold = restored.fold
    begun = fold.nodes.get(RUN)
    # Each opening sees the same document again.
    if document is None or (begun is not None and begun.data.get(_TAKEN_IN) == document.digest):
        return []
    appender = Appender(journal, fold, restored.link, entropy)
    records = records_from(document.document, run_of(fold), at=at)
    return appender.append_all(_marked(record, document) for record in records)


def run_of(fold: Fold) -> Run:
    """The run in an orchestrator's journal."""
    return Run.of(fold.nodes.values(), fold.frontier, fold.run)


def _marked(record: NodeChanged, document: RunFile) -> NodeChanged:
    if record.node != RUN:
        return record
    return replace(record, data={**record.data, _TAKEN_IN: document.digest})
