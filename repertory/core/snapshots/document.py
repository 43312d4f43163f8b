"""A snapshot as a JSON document in the documented layout, and back, also from documents of other programs.

The envelope's five fields are written under both names in use, and so is the model's state. The system prompt is
written as blocks; the code's prompt wins. Two fields are ours, and other programs drop them when they write: `sha256`
over the content, and `repertory`, the snapshot's position in our journal. So a document without them was written by
another program, and one whose content does not match the digest was changed.

Source: the documented snapshot layout, as strands-agents 1.62.0 writes it and as the TypeScript package describes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from msgspec import Struct, field

from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.json_bytes import decoded, encoded, epoch, zulu
from repertory.core.message_tree.documents import OURS, RunFile, manager_fields
from repertory.core.message_tree.opening import open_run, run_of
from repertory.core.messages import Json, Message, SystemPrompt, check_shape, check_system_prompt, repair_message
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import Run
from repertory.core.provider_parts import agent_as_ours, agent_for_others
from repertory.core.snapshots.location import AGENT_SCOPE, RUN_SCOPE
from repertory.core.turns.interrupt_state import NO_INTERRUPTS, documented_state
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import Corrupt, Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.restore import Entropy
    from repertory.core.journal.rows import Row
    from repertory.core.snapshots.location import SnapshotLocation

SCHEMA_VERSION = "1.0"
FORMAT = 1
_DIGEST = "sha256"


class SnapshotContent(Struct, frozen=True, kw_only=True):
    """An agent at rest, as a snapshot shows it."""

    messages: Sequence[Message]
    """The messages shown to the model, a summary included."""
    state: Mapping[str, Json] = {}
    manager: Mapping[str, Json] = {}
    """The conversation manager's class as `__name__`, and its counters."""
    model_state: Mapping[str, Json] = {}
    interrupt_state: Mapping[str, Json] = field(default_factory=lambda: dict(NO_INTERRUPTS))
    app_data: Mapping[str, Json] = {}
    system_prompt: SystemPrompt = None


class JournalPosition(Struct, frozen=True, kw_only=True):
    """The position of a snapshot in our journal."""

    seq: int
    """The last record that counts."""
    link: str
    """The link of that record, in hexadecimal: it proves that the journal is the same one."""
    generation: int
    """The generation of the owner who wrote it."""
    more: Mapping[str, Json] = {}
    """Further data of the writer."""


class ReadSnapshot(Struct, frozen=True, kw_only=True):
    """A snapshot, as read."""

    content: SnapshotContent
    created_at: float
    """Epoch seconds; 0.0 when unknown."""
    position: JournalPosition | None
    """None when another program wrote it."""


def snapshot_document(
    content: SnapshotContent,
    at: float,
    position: JournalPosition | None = None,
    digest: Callable[[Mapping[str, object]], str] | None = None,
) -> dict[str, object]:
    """The document, in JSON values. `digest` makes that of `data` and `app_data`. Errors: `Invalid` for values that are
    not JSON.
    """
    data: dict[str, object] = {
        "messages": content.messages,
        "state": content.state,
        "conversation_manager_state": content.manager,
        "interrupt_state": content.interrupt_state,
        "model_state": content.model_state,
        "modelState": content.model_state,
    }
    if content.system_prompt is not None:
        prompt = content.system_prompt
        data["system_prompt"] = [{"text": prompt}] if isinstance(prompt, str) else prompt
    return enveloped(AGENT_SCOPE, data, content.app_data, at, position, digest)


def enveloped(
    scope: str,
    data: Mapping[str, object],
    app_data: Mapping[str, Json],
    at: float,
    position: JournalPosition | None,
    digest: Callable[[Mapping[str, object]], str] | None = None,
) -> dict[str, object]:
    """A document of that scope, in JSON values. `digest` makes that of `data` and `app_data`. Errors: `Invalid` for
    values that are not JSON.
    """
    data_for_others = agent_for_others(data) if scope == AGENT_SCOPE else data
    when, encoded_data, others = zulu(at), encoded(data_for_others), encoded(app_data)
    document: dict[str, object] = {
        "scope": scope,
        "schema_version": SCHEMA_VERSION,
        "schemaVersion": SCHEMA_VERSION,
        "created_at": when,
        "createdAt": when,
        "data": encoded_data,
        "app_data": others,
        "appData": others,
        _DIGEST: (digest or content_digest)({"data": encoded_data, "app_data": others}),
    }
    if position is None:
        return document
    ours = {"format": FORMAT, "seq": position.seq, "link": position.link, "generation": position.generation}
    return {**document, OURS: {**ours, **position.more}}


def read_snapshot(document: object) -> ReadSnapshot:
    """The snapshot in a document, in either spelling. `document`: JSON values.

    Errors: `SnapshotException` with the fault.
    """
    opened = open_envelope(document, AGENT_SCOPE)
    data = opened.data
    content = SnapshotContent(
        messages=_messages(data.get("messages", [])),
        state=_mapping(data, "state", missing={}),
        manager=_mapping(data, "conversation_manager_state", missing={}),
        model_state=_mapping(data, "model_state", "modelState", missing={}),
        interrupt_state=_mapping(data, "interrupt_state", missing=NO_INTERRUPTS),
        app_data=opened.app_data,
        system_prompt=_prompt(data.get("system_prompt")),
    )
    return ReadSnapshot(content=content, created_at=opened.created_at, position=opened.position)


class SnapshotHeader(Struct, frozen=True, kw_only=True):
    """The fields of every snapshot, of any scope."""

    data: Mapping[str, object]
    """The snapshot's content, with bytes decoded."""
    app_data: Mapping[str, Json]
    created_at: float
    """Epoch seconds; 0.0 when unknown."""
    position: JournalPosition | None
    """None when another program wrote it."""


def open_envelope(document: object, scope: str) -> SnapshotHeader:
    """The fields of a document of that scope, in either spelling. `document`: JSON values.

    Errors: `SnapshotException` with the fault.
    """
    if not isinstance(document, dict):
        raise SnapshotException("a snapshot is a JSON object", got=type(document).__name__)
    fields = cast("dict[str, object]", document)
    check_envelope(fields, scope)
    try:
        data: Mapping[str, object] = decoded(_mapping(fields, "data"))
        app_data = decoded(_mapping(fields, "app_data", "appData", missing={}))
    except ValueError as error:
        raise SnapshotException("the content of a snapshot cannot be read", cause=str(error)) from error
    return SnapshotHeader(
        data=agent_as_ours(data) if scope == AGENT_SCOPE else data,
        app_data=cast("dict[str, Json]", app_data),
        created_at=epoch(fields.get("created_at") or fields.get("createdAt")),
        position=_standing(fields),
    )


def check_envelope(document: Mapping[str, object], scope: str = AGENT_SCOPE) -> None:
    """Errors: `SnapshotException` for an unknown version or another scope."""
    version = document.get("schema_version", document.get("schemaVersion"))
    if version != SCHEMA_VERSION:
        raise SnapshotException("a snapshot of an unknown version", schema_version=version, known=SCHEMA_VERSION)
    found = document.get("scope", AGENT_SCOPE)
    if found != scope:
        raise SnapshotException("a snapshot of something else", scope=found, expected=scope)


def content_digest(content: Mapping[str, object]) -> str:
    """SHA-256 of JSON values, in hexadecimal; the order of keys does not matter. Errors: `Invalid`."""
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("a snapshot holds JSON values only", cause=str(error)) from error
    return sha256(text.encode()).hexdigest()


def snapshot_content(fold: Fold, found: SnapshotContent | None, manager: str) -> SnapshotContent:
    """The snapshot of a journal. `found`: the latest snapshot, as read, for data that other programs keep in it.
    `manager`: the class name of the conversation manager.
    """
    view = fold.shown.view
    name = manager or view.manager or DEFAULT_MANAGER
    removed = view.manager_state.get("removed_message_count")
    count = removed if isinstance(removed, int) else 0
    fields = manager_fields(view, name, count, found.manager if found is not None else {})
    return SnapshotContent(
        messages=fold.shown.messages(),
        state=dict(fold.state),
        manager=fields,
        model_state=found.model_state if found is not None else {},
        interrupt_state=documented_state(pending_tools_of(fold)),
        app_data=found.app_data if found is not None else {},
        system_prompt=found.system_prompt if found is not None else None,
    )


def _standing(document: Mapping[str, object]) -> JournalPosition | None:
    ours = document.get(OURS)
    if not isinstance(ours, dict):
        return None
    position = cast("dict[str, Json]", ours)
    try:
        digest = content_digest({"data": document.get("data"), "app_data": document.get("app_data")})
    except Invalid:
        return None
    # Damage, and not another program's edit: it must not be taken in as one.
    if document.get(_DIGEST) != digest:  # Other programs drop our fields, so none of them wrote this.
        raise SnapshotException("it is not as it was written", sha256=document.get(_DIGEST), found=digest)
    seq, link, generation = position.get("seq"), position.get("link"), position.get("generation")
    known = position.get("format") == FORMAT
    if not (known and isinstance(seq, int) and isinstance(link, str) and isinstance(generation, int)):
        return None
    more = {name: value for name, value in position.items() if name not in ("format", "seq", "link", "generation")}
    return JournalPosition(seq=seq, link=link, generation=generation, more=more)


def _prompt(found: object) -> SystemPrompt:
    try:
        return check_system_prompt(found)
    except Invalid as error:
        raise SnapshotException("the system prompt of a snapshot cannot be read", cause=str(error)) from error


def _mapping(
    fields: Mapping[str, object], name: str, other: str | None = None, missing: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    value = fields.get(name)
    if value is None and other is not None:
        value = fields.get(other)
    if value is None and missing is not None:
        return dict(missing)
    if not isinstance(value, dict):
        raise SnapshotException(f"the {name} of a snapshot is a JSON object", got=type(value).__name__)
    return cast("dict[str, Json]", value)


def _messages(found: object) -> list[Message]:
    if not isinstance(found, list):
        raise SnapshotException("the messages of a snapshot are a list", got=type(found).__name__)
    messages: list[Message] = []
    for number, message in enumerate(cast("list[object]", found)):
        try:
            # Repaired: a message that no provider takes would make every later call fail.
            messages.append(repair_message(check_shape(message)))
        except Invalid as error:
            msg = "a message of a snapshot cannot be read"
            raise SnapshotException(msg, number=number, cause=str(error)) from error
    return messages


# The run of an orchestrator as a snapshot in the documented layout, and back, also from other programs.
#
#     {"scope": "multiAgent", ..., "data": {"orchestrator_id": ID, "state": DOCUMENT}, ...}
#
# The state is that of `core/orchestration/document.py`. Source: as strands-agents 1.62.0 writes it.


class FoundRun(Struct, frozen=True, kw_only=True):
    """The snapshot of a run, as read."""

    document: Mapping[str, Json]
    """The document of the run."""
    app_data: Mapping[str, Json]
    created_at: float
    """Epoch seconds; 0.0 when unknown."""
    position: JournalPosition | None
    """None when another program wrote it."""

    @property
    def waits(self) -> bool:
        """True if it holds interrupts of an unfinished run; a journal takes over only those that can be resumed."""
        internal = self.document.get("_internal_state")
        asked = internal.get("interrupt_state") if isinstance(internal, dict) else None
        return isinstance(asked, dict) and bool(asked.get("activated"))


def run_snapshot(
    fold: Fold, orchestrator_id: str, at: float, position: JournalPosition, app_data: Mapping[str, Json]
) -> dict[str, object]:
    """The document of an orchestrator's journal, in JSON values. `app_data`: that of other programs."""
    data = {"orchestrator_id": orchestrator_id, "state": document_of(run_of(fold), orchestrator_id)}
    return enveloped(RUN_SCOPE, data, app_data, at, position)


def read_run_snapshot(document: object, orchestrator_id: str) -> FoundRun:
    """The run in a document. `document`: JSON values.

    Errors: `SnapshotException` with the fault: malformed, or of another orchestrator.
    """
    opened = open_envelope(document, RUN_SCOPE)
    found, state = opened.data.get("orchestrator_id"), opened.data.get("state")
    if found != orchestrator_id:
        raise SnapshotException("a snapshot of another orchestrator", got=found, expected=orchestrator_id)
    if not isinstance(state, dict):
        raise SnapshotException("the state of a snapshot is a JSON object", got=type(state).__name__)
    run = FoundRun(
        document=cast("dict[str, Json]", state),
        app_data=opened.app_data,
        created_at=opened.created_at,
        position=opened.position,
    )
    if run.position is None:
        try:
            records_from(run.document, Run(), at=0.0)
        except Corrupt as error:
            raise SnapshotException("a snapshot of a run that cannot be read", cause=str(error)) from error
    return run


def rows_for_run(
    location: SnapshotLocation, rows: Sequence[Row], snapshot: FoundRun, at: float, entropy: Entropy
) -> list[Row]:
    """The rows after which the journal says what the snapshot says; none when it does already, or took it in before.
    `rows`: those from the last one's `low` on. Errors: `CorruptJournal` for the rows.
    """
    digest = content_digest({"state": encoded(snapshot.document)})
    document = RunFile(document=snapshot.document, digest=digest)
    names = location.session_id, location.journal
    return open_run(names, rows, document, snapshot.created_at or at, entropy)
