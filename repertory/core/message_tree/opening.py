"""Opening an agent or an orchestrator: the stored rows, and new rows for what other programs wrote meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.codec import encode, load
from repertory.core.journal.fold import Fold, is_answer
from repertory.core.journal.image import Image
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Record,
    Redacted,
    Resumed,
    StateChanged,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import Appender, Entropy, restore
from repertory.core.journal.rows import SALT_BYTES, VERSION, Row, digest_of, header_of, next_link
from repertory.core.message_tree.assembly import Assembled, DamagedContent
from repertory.core.message_tree.documents import AgentFile, Read, RunFile
from repertory.core.message_tree.kept_rows import message_in
from repertory.core.messages import (
    INTERRUPTED_TEXT,
    LOST_TEXT,
    ContentBlock,
    Json,
    Message,
    check_next,
    error_result,
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


class OpenedTree(Struct, frozen=True, kw_only=True):
    """An opened journal, and the rows to add to it."""

    found: Sequence[Row]
    """The stored rows, as far as they were read."""
    made: Sequence[Row]
    """The rows to store."""
    files: Mapping[int, tuple[int, Message]]
    """Of `made`: sequence number to the number of the document that shows the message, and the message."""
    fold: Fold

    def needed(self) -> list[Row]:
        """The rows from the last one's `low` on."""
        return needed_of([*self.found, *self.made])


class Due(NamedTuple):
    """Why an agent's document must be rewritten."""

    state: bool = False
    """Its state changed, or whether the turn waits for a person. Written at once."""
    view: bool = False
    """What is shown changed. Written when the session is released."""


def due_after(record: Record | None, *, asks: bool, manager: str) -> Due:
    """What a record changes in the agent's document. `asks`, `manager`: whether the document says that the turn waits
    for a person, and the manager it names.
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


def open_agent(
    names: tuple[str, str],
    found: Assembled,
    numbers: Sequence[int],
    agent: AgentFile | None,
    at: float,
    entropy: Entropy,
) -> OpenedTree:
    """The stored rows, then new ones: for edits, for added messages, and for the agent's document.

    `names`: of the session and of the agent. `numbers`: of the message documents, in order, without those of a commit
    that was cut off. When the rows begin after the last one's `low`, the earlier ones are lost, and are restated as far
    as the agent's document tells.
    """
    session_id, agent_id = names
    rows = [*found.rows]
    made = redactions_for(rows, found.faults, at, entropy)
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
        shown_from = first_shown_by(agent, numbers, places, fold.last_seq)
        made += adopt_agent(appender, agent, shown_from, at, first_turn=not found.rows)
    return OpenedTree(found=found.rows, made=made, files=adopted.files, fold=fold)


def _fold_of(needed: Sequence[Row], gone: bool, session_id: str) -> Fold:
    if gone and len(needed) == 1:  # It is needed for its link only.
        return Fold(Image(last_seq=needed[0].seq), partial=True)
    return restore(needed, session_id=session_id).fold


def _first_prompt(fold: Fold) -> int:
    """The first remaining message that is shown and may be the first for a model."""
    for seq, message in fold.shown.recent:
        if message["role"] == "user" and not any(tool_results(message)):
            return seq
    return fold.last_seq + 1


def first_shown_by(agent: AgentFile, numbers: Sequence[int], places: Mapping[int, int], last_seq: int) -> int | None:
    """The first message that the other program shows, as a sequence number; None when it is before the known rows."""
    removed = agent.manager.get("removed_message_count")
    if not isinstance(removed, int) or removed <= 0 or not numbers:
        return None
    if removed >= len(numbers):
        return last_seq + 1
    first = numbers[removed]
    seqs = [seq for seq, number in places.items() if number >= first]
    return min(seqs) if seqs and first >= min(places.values()) else None


# Adopting what other programs wrote: added messages, edits, state, and how much is shown.
#
# Each becomes a record, once. What breaks the pairing rule is repaired in the record, with the reason; the document
# stays as it is.


class Adopted(Struct, frozen=True, kw_only=True):
    """New rows for what other programs wrote."""

    rows: Sequence[Row]
    files: Mapping[int, tuple[int, Message]]
    """Sequence number of a row to the number of the document that shows its message, and that message."""


def redactions_for(rows: Sequence[Row], faults: Sequence[DamagedContent], at: float, entropy: Entropy) -> list[Row]:
    """Redactions for corrupt messages, to follow `rows`.

    They are chained by hand: nothing can be folded before they exist.
    """
    made: list[Row] = []
    for fault in faults:
        last = made[-1] if made else rows[-1]
        turn, index = _place(rows, fault.row.seq)
        record = Redacted(at=at, target=fault.row.seq, message=_instead(rows, fault), turn=turn, index=index)
        kind, body = encode(record)
        salt, seq = entropy(SALT_BYTES), last.seq + 1
        link = next_link(last.link, header_of(seq, kind, VERSION, last.low), digest_of(salt, body))
        made.append(Row(last.agent_id, seq, kind, VERSION, last.low, link, salt, body))
    return made


def adopt(appender: Appender, added: Sequence[tuple[int, Read]], at: float) -> Adopted:
    """The rows for messages that other programs added, in order. `at` replaces unknown times."""
    rows: list[Row] = []
    files: dict[int, tuple[int, Message]] = {}
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
                files[row.seq] = (number, read.message)
    return Adopted(rows=rows, files=files)


def adopt_agent(
    appender: Appender, found: AgentFile, shown_from: int | None, at: float, *, first_turn: bool
) -> list[Row]:
    """The rows for an agent's document that another program wrote: state, view and interrupts.

    `shown_from`: the sequence number of the first message shown; None when it is before the known rows. `first_turn`:
    no row of ours exists, so all of the document is new.
    """
    rows: list[Row] = []
    fold = appender.fold
    if dict(found.state) != dict(fold.state) and (found.state or not first_turn):
        rows.append(appender.append(StateChanged(at=at, full=dict(found.state))))
    view = fold.shown.view
    summary = found.manager.get("summary_message")
    try:
        shown_summary = repair_stored_message(summary) if summary is not None else None
    except Invalid:
        shown_summary = None
    first = max(view.first_shown, shown_from or 0)
    own = own_state(found.manager)
    other = bool(own) and own != own_state(view.manager_state)
    if shown_summary is not None and view.summary is not None and shown_summary == with_texts_of_parts(view.summary):
        shown_summary = view.summary  # Parts that only its provider can read are in no document.
    if first != view.first_shown or (shown_summary is not None and shown_summary != view.summary) or other:
        manager, calls = found.manager.get("__name__"), found.manager.get("model_call_count")
        changed = replace(
            view,
            first_shown=first,
            replaced={seq: message for seq, message in view.replaced.items() if seq >= first},
            hidden=tuple(seq_range for seq_range in view.hidden if seq_range[1] >= first),
            summary=shown_summary or view.summary,
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
    kept = {name: value for name, value in message.items() if name != "metadata"}  # A filler has no usage.
    return cast("Message", {**kept, "content": [{"text": LOST_TEXT}]})


def _place(rows: Sequence[Row], target: int) -> tuple[int, int]:
    """Turn and index of a message whose record is lost, from the nearest record that is not."""
    fields_of: dict[int, Mapping[str, object]] = {}
    for row in rows:
        if row.kind == 1 and not row.erased:
            value = load(row.body)
            fields_of[row.seq] = value if isinstance(value, dict) else {}
    order = [row.seq for row in rows if row.kind == 1]
    position = order.index(target)
    for distance in range(1, len(order)):
        for step in (-distance, distance):
            seq = order[position + step] if 0 <= position + step < len(order) else None
            if seq in fields_of:
                turn, index = fields_of[seq].get("turn"), fields_of[seq].get("index")
                if isinstance(turn, int) and isinstance(index, int):
                    return turn, index - step
    return 1, position


def _instead(rows: Sequence[Row], fault: DamagedContent) -> Message:
    """The replacement of a corrupt message: its document's message if that fits its neighbours, else a stand-in."""
    order = [row for row in rows if row.kind == 1]
    position = next(place for place, row in enumerate(order) if row.seq == fault.row.seq)
    before = message_in(order[position - 1]) if position else None
    after = message_in(order[position + 1]) if position + 1 < len(order) else None
    message = well_formed(fault.message) if fault.message is not None else None
    if message is not None and _fits(before, message, after):
        return message
    return _stand_in(before, after)


def _fits(before: Message | None, message: Message, after: Message | None) -> bool:
    try:
        check_next(before, message)
        if after is not None:
            check_next(message, after)
    except UnpairedTools:
        return False
    return True


def _stand_in(before: Message | None, after: Message | None) -> Message:
    """A message that says that one was lost, and keeps its neighbours' tools paired."""
    asked = [use["toolUseId"] for use in tool_uses(before)] if before is not None else []
    answered = [result["toolUseId"] for result in tool_results(after)] if after is not None else []
    text: ContentBlock = {"text": LOST_TEXT}
    if asked:
        results: list[ContentBlock] = [{"toolResult": error_result(use_id, INTERRUPTED_TEXT)} for use_id in asked]
        return {"role": "user", "content": [*results, text]}
    if answered:
        uses: list[ContentBlock] = [
            {"toolUse": {"toolUseId": use_id, "name": "unknown", "input": {}}} for use_id in answered
        ]
        return {"role": "assistant", "content": [text, *uses]}
    role = "assistant" if before is not None and before["role"] == "user" else "user"
    return {"role": role, "content": [text]}


# Opening an orchestrator: the stored rows, and new ones for the run that another program wrote.

_TAKEN_IN = "document"
"""A key in a run's record: the digest of the document it was made from, so that one document makes one run."""


def open_run(
    names: tuple[str, str], found: Sequence[Row], document: RunFile | None, at: float, entropy: Entropy
) -> OpenedTree:
    """The journal of an orchestrator, with new records for what other programs wrote. `names`: of session and journal.

    Errors: `CorruptJournal` for the rows; `Corrupt` for a malformed document.
    """
    session_id, journal = names
    restored = restore(needed_of(found), session_id=session_id)
    fold = restored.fold
    made: list[Row] = []
    if document is not None and document.seq is None and not _is_taken_in(fold, document):
        appender = Appender(journal, fold, restored.link, entropy)
        records = records_from(document.said, run_of(fold), at=at)
        made = appender.append_all(_marked(record, document) for record in records)
    return OpenedTree(found=found, made=made, files={}, fold=fold)


def run_of(fold: Fold) -> Run:
    """The run in an orchestrator's journal."""
    return Run.of(fold.nodes.values(), fold.frontier, fold.run)


def _is_taken_in(fold: Fold, document: RunFile) -> bool:
    begun = fold.nodes.get(RUN)
    return begun is not None and begun.data.get(_TAKEN_IN) == document.digest


def _marked(record: NodeChanged, document: RunFile) -> NodeChanged:
    if record.node != RUN:
        return record
    return replace(record, data={**record.data, _TAKEN_IN: document.digest})
