"""The documents of the tree, field by field; and rows of a journal in JSON, as events of AgentCore Memory have them.

    session_<id>/session.json                                    who and when
    session_<id>/agents/agent_<id>/agent.json                    state, and how much of the history is shown
    session_<id>/agents/agent_<id>/messages/message_<n>.json     one message
    session_<id>/multi_agents/multi_agent_<id>/multi_agent.json  a run, see `core/orchestration/document.py`

Other programs drop unknown fields when they write, and ignore unknown documents. Source: the documented session layout,
as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.codec import decode, dump
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import Redacted
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import (
    decoded,
    digest_in_json,
    digest_of_document,
    epoch,
    iso,
    json_file,
    parsed,
    read,
    to_file,
)
from repertory.core.message_tree.kept_rows import KeptRow, Line, entry, message_in, read_entry, tracked
from repertory.core.messages import Json, Message, check_shape
from repertory.core.orchestration.document import document_of
from repertory.core.provider_parts import (
    as_ours,
    for_others,
    manager_as_ours,
    manager_for_others,
    manager_with_texts,
)
from repertory.core.turns.interrupt_state import documented_state
from repertory.core.window.decision import DEFAULT_MANAGER, own_state
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import View
    from repertory.core.orchestration.run import Run

OURS = "repertory"
DIGEST = "digest"
FORMAT = 1
ERASED_TEXT = "[erased]"


class RecordGroup(Struct, frozen=True, kw_only=True):
    """The rows of one document, and what a reader needs to know of other documents."""

    rows: Sequence[Row]
    generation: int
    before: Sequence[Line] = ()
    """The rows of the document before; written without their salts, which must be erased with the contents."""
    batch: tuple[int, int] | None = None
    """First and last sequence number of the commit, when it took several documents."""
    erase: Sequence[int] = ()
    """Rows that this commit erases, until that is done."""
    next_number: int = 0
    """The number of the next message's document, for rows without a message."""
    taken: int = 0
    """One more than the last foreign document that these rows adopt, where they hold its message repaired."""


class Read(Struct, frozen=True, kw_only=True):
    """A document of rows or of a message, as read."""

    kept: Sequence[KeptRow] = ()
    """Empty when another program wrote it."""
    message: Message | None = None
    """The message it shows, redaction applied."""
    at: float = 0.0
    before: Sequence[Line] = ()
    batch: tuple[int, int] | None = None
    erase: Sequence[int] = ()
    next_number: int = 0
    taken: int = 0
    generation: int = 0
    """That of the owner who wrote it."""
    fault: str | None = None
    """Why it cannot be read."""
    altered: bool = False
    """True if its digest does not match: its content changed, while our keys stayed."""


ALTERED = "it is not as it was written"


class AgentFile(Struct, frozen=True, kw_only=True):
    """An agent's document, as read."""

    state: Mapping[str, Json]
    manager: Mapping[str, Json]
    model_state: Mapping[str, Json]
    interrupts: Mapping[str, Json] = {}
    """The state of a turn that waits for a person; see `core/turns/interrupt_state.py`."""
    created_at: str
    foreign: bool
    """True if another program wrote it last."""

    @property
    def asks(self) -> bool:
        """True if it says that the turn waits for a person."""
        return bool(self.interrupts.get("activated"))


def session_document(session_id: str, at: float) -> bytes:
    """`session.json`."""
    when = iso(at)
    return to_file({"session_id": session_id, "session_type": "AGENT", "created_at": when, "updated_at": when})


def message_fields(number: int, message: Message, at: float, group: RecordGroup) -> dict[str, object]:
    """Its fields, before encoding."""
    shown, redacted, when = message, False, iso(at)
    for row in group.rows:
        if row.kind == 1:
            shown, redacted = tracked(message, row.link), row.erased
    documented = for_others(shown)
    return {
        "message": documented,
        "message_id": number,
        "redact_message": documented if redacted else None,
        "created_at": when,
        "updated_at": when,
        OURS: _group_fields(group, [entry(row, shown if row.kind == 1 else None) for row in group.rows]),
    }


def rows_fields(group: RecordGroup, files: Mapping[int, tuple[int, Message]]) -> dict[str, object]:
    """Its fields, before encoding."""
    entries: list[dict[str, object]] = []
    for row in group.rows:
        number, shown = files.get(row.seq, (None, None))
        entries.append(entry(row, shown, number))
    taken = {"taken": group.taken} if group.taken else {}
    return {"next": group.next_number, **taken, **_group_fields(group, entries)}


def manager_named(view: View, found: AgentFile | None) -> str:
    """The class of the conversation manager, as `agent.json` names it."""
    name = found.manager.get("__name__") if found is not None else None
    return view.manager or (name if isinstance(name, str) and name else DEFAULT_MANAGER)


def manager_fields(view: View, name: str, removed: int, found: Mapping[str, Json]) -> dict[str, Json]:
    """The conversation manager as documents show it. `removed`: the number of messages before the first one shown.
    `found`: the same fields, as read.
    """
    fields: dict[str, Json] = {"__name__": name, "removed_message_count": removed}
    calls = view.manager_state.get("model_call_count")
    if name == DEFAULT_MANAGER:
        fields["model_call_count"] = calls if isinstance(calls, int) else 0
    if view.summary is not None or "summary_message" in found:
        fields = {"summary_message": cast("Json", view.summary), **fields}
    return fields | own_state(view.manager_state)


def agent_document(
    agent_id: str,
    fold: Fold,
    removed: int,
    found: AgentFile | None,
    times: tuple[float, float],
    *,
    marked: bool = True,
) -> bytes:
    """`agent.json`. `removed`: the number of message documents before the first one shown. `times`: those of the first
    document, unless `found` says it, and of this one. `marked`: with our key.
    """
    view, state = fold.shown.view, dict(fold.state)
    manager = manager_fields(view, manager_named(view, found), removed, found.manager if found is not None else {})
    model_state = dict(found.model_state) if found is not None else {}
    document: dict[str, object] = {
        "agent_id": agent_id,
        "state": state,
        "conversation_manager_state": manager_for_others(manager) if marked else manager_with_texts(manager),
        "_internal_state": {
            "interrupt_state": documented_state(pending_tools_of(fold)),
            "model_state": model_state,
        },
        "created_at": found.created_at if found is not None else iso(times[0]),
        "updated_at": iso(times[1]),
    }
    if not marked:
        return to_file(document)
    digest = _digest(_mapping(read(to_file({"state": state}, indent=None))["state"]))
    return with_digest({**document, OURS: {"format": FORMAT, "state": digest}})


def read_message_fields(fields: Mapping[str, object]) -> Read:
    """The same from decoded fields."""
    try:
        shown = fields.get("redact_message")
        message = as_ours(check_shape(shown if shown is not None else fields.get("message")))
        at = epoch(fields.get("created_at"))
        ours = fields.get(OURS)
        if not isinstance(ours, dict):
            return Read(message=message, at=at)
        return _read_group(cast("dict[str, object]", ours), message, at)
    except (ValueError, TypeError, KeyError) as error:
        return Read(fault=str(error) or "it is empty")


def read_rows(body: bytes) -> Read:
    """A document of rows."""
    try:
        document = parsed(body)
        fields = decoded(document)
    except ValueError as error:
        return Read(fault=str(error) or "it is empty")
    return replace(read_rows_fields(fields), altered=is_altered(document))


def read_rows_fields(fields: Mapping[str, object]) -> Read:
    """The same from decoded fields."""
    try:
        return _read_group(fields, None, 0.0)
    except (ValueError, TypeError, KeyError) as error:
        return Read(fault=str(error) or "it is empty")


def read_agent(body: bytes) -> AgentFile | None:
    """An agent's document; None when it cannot be read, or its digest does not match."""
    try:
        document = parsed(body)
        fields = decoded(document)
    except ValueError:
        return None
    if is_altered(document):
        return None
    state, manager = _mapping(fields.get("state")), manager_as_ours(_mapping(fields.get("conversation_manager_state")))
    ours, internal = _mapping(fields.get(OURS)), _mapping(fields.get("_internal_state"))
    return AgentFile(
        state=state,
        manager=cast("Mapping[str, Json]", manager),
        model_state=_mapping(internal.get("model_state")),
        interrupts=_mapping(internal.get("interrupt_state")),
        created_at=str(fields.get("created_at")),
        foreign=ours.get("state") != _digest(state),
    )


def without_content_fields(
    fields: dict[str, object], wanted: Collection[int], shown: Message | None, at: float
) -> dict[str, object]:
    """The same for decoded fields, which it changes."""
    ours = fields.get(OURS) if "message" in fields else fields
    if isinstance(ours, dict):
        group = cast("dict[str, object]", ours)
        group.pop("erase", None)
        group["rows"] = [_erased(value, wanted) for value in cast("list[dict[str, object]]", group.get("rows", []))]
    if shown is not None:
        tracking_id = _mapping(fields.get("message")).get("tracking_id")
        instead = for_others(shown if tracking_id is None else {**shown, "tracking_id": str(tracking_id)})
        fields |= {"message": instead, "redact_message": instead, "updated_at": iso(at)}
    return fields


def with_digest(document: Mapping[str, object]) -> bytes:
    """The document as a file, with a digest of all else among our keys."""
    made = dict(document)
    ours = made
    if OURS in made:
        ours = made[OURS] = dict(cast("Mapping[str, object]", made[OURS]))
    ours.pop(DIGEST, None)
    spelled, digest = digest_in_json(made)
    cast("dict[str, object]", spelled.get(OURS, spelled))[DIGEST] = digest
    return json_file(spelled)


def is_altered(document: Mapping[str, object]) -> bool:
    """True if the document, in JSON values, does not match its digest. False without a digest."""
    ours = document.get(OURS, document if "generation" in document else None)
    group = cast("dict[str, object]", ours) if isinstance(ours, dict) else {}
    if DIGEST not in group:
        return False
    bare = {name: value for name, value in group.items() if name != DIGEST}
    return group[DIGEST] != digest_of_document({**document, OURS: bare} if OURS in document else bare)


def _erased(value: Mapping[str, object], wanted: Collection[int]) -> Mapping[str, object]:
    line = Line.read(value.get("row"))
    if line.seq not in wanted:
        return value
    erased: dict[str, object] = {"row": str(line.erased())}
    return {**erased, "file": value["file"]} if "file" in value else erased


def _group_fields(group: RecordGroup, entries: list[dict[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {"format": FORMAT, "generation": group.generation}
    if group.batch is not None:
        fields["batch"] = list(group.batch)
    if group.erase:
        fields["erase"] = list(group.erase)
    return {**fields, "before": [str(line.erased()) for line in group.before], "rows": entries}


def _read_group(ours: Mapping[str, object], message: Message | None, at: float) -> Read:
    if ours.get("format") != FORMAT:
        raise ValueError(f"it is of a format that this release does not know: {ours.get('format')!r}")
    batch = ours.get("batch")
    first, last = cast("list[int]", batch) if isinstance(batch, list) else (0, 0)
    return Read(
        kept=tuple(read_entry(value) for value in cast("list[object]", ours["rows"])),
        message=message,
        at=at,
        before=tuple(Line.read(text) for text in cast("list[object]", ours.get("before", []))),
        batch=(first, last) if last else None,
        erase=tuple(cast("list[int]", ours.get("erase", []))),
        next_number=int(cast("int", ours.get("next", 0))),
        taken=int(cast("int", ours.get("taken", 0))),
        generation=int(cast("int", ours["generation"])),
    )


def _mapping(value: object) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def _digest(state: Mapping[str, Json]) -> str:
    """The digest that identifies a state that we wrote."""
    try:
        return sha256(dump(state)).hexdigest()[:32]
    except Invalid:
        return ""


_BLANK: Mapping[str, Message] = {
    "user": {"role": "user", "content": [{"text": ERASED_TEXT}]},
    "assistant": {"role": "assistant", "content": [{"text": ERASED_TEXT}]},
}
"""The message in the place of an erased one without a redaction."""


def parts_of(rows: Sequence[Row]) -> list[tuple[list[Row], Message | None]]:
    """The rows by document: one message each, with the rows around it. A message erased before it was written is
    replaced by its redaction.
    """
    instead = shown_instead(rows, [row.seq for row in rows if row.kind == RecordKind.MESSAGE and row.erased])
    parts: list[tuple[list[Row], Message | None]] = []
    waiting: list[Row] = []
    for row in rows:
        message = message_in(row) or instead.get(row.seq)
        if message is not None:
            parts.append(([*waiting, row], message))
            waiting = []
        elif parts:
            parts[-1][0].append(row)
        else:
            waiting.append(row)
    if waiting:
        parts.append((waiting, None))
    return parts


def redactions_in(rows: Iterable[Row]) -> dict[int, Message]:
    """Sequence number of a redacted message to the message of its last redaction."""
    redactions: dict[int, Message] = {}
    for row in rows:
        if row.kind == RecordKind.REDACTION and not row.erased:
            record = decode(row.kind, row.version, row.body)
            if isinstance(record, Redacted):
                redactions[record.target] = record.message
    return redactions


def shown_instead(rows: Sequence[Row], wanted: Collection[int]) -> dict[int, Message]:
    """Sequence number to the message shown in the place of a message that will be erased."""
    redactions = redactions_in(rows)
    shown: dict[int, Message] = {}
    for row in rows:
        message = message_in(row) if row.seq in wanted else None
        instead = redactions.get(row.seq) or (_BLANK.get(message["role"]) if message is not None else None)
        if row.seq in wanted and instead is not None:
            shown[row.seq] = instead
    return shown


# The run of an orchestrator. Our key names the last row that the document shows, and holds a digest of all else: when
# the digest does not match, or the key is missing, another program has written it.


class RunFile(Struct, frozen=True, kw_only=True):
    """The document, as read."""

    said: Mapping[str, Json]
    """All of it but our key."""
    seq: int | None
    """The last row that it shows; None when another program wrote it last."""
    digest: str
    """The digest of `said`."""


def bare_run_file(run: Run, orchestrator_id: str) -> bytes:
    """The document, without a key of ours."""
    return to_file(document_of(run, orchestrator_id))


def read_run_file(body: bytes, orchestrator_id: str) -> RunFile:
    """The document from a file, from any program. Errors: `ValueError` when it cannot be read or belongs to another
    orchestrator.
    """
    document = parsed(body)
    ours = document.pop(OURS, None)
    if document.get("id") != orchestrator_id:
        raise ValueError(f"it is about another orchestrator: {document.get('id')!r}")
    digest = digest_of_document(document)
    known_keys = cast("dict[str, object]", ours) if isinstance(ours, dict) else {}
    known = known_keys.get(DIGEST) == digest
    return RunFile(
        said=cast("dict[str, Json]", decoded(document)),
        seq=seq if known and isinstance(seq := known_keys.get("seq"), int) else None,
        digest=digest,
    )
