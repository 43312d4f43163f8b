"""The documents of the tree, field by field.

    session_<id>/session.json                                    who and when
    session_<id>/agents/agent_<id>/agent.json                    state, and how much of the history is shown
    session_<id>/agents/agent_<id>/messages/message_<n>.json     one message
    session_<id>/multi_agents/multi_agent_<id>/multi_agent.json  a run, see `core/orchestration/document.py`

Other programs drop unknown fields when they write, and ignore unknown documents. Source: the documented session layout,
as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from repertory.core.journal.codec import load
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import decoded, digest_of_document, iso, parsed, to_file
from repertory.core.messages import Json, Message, repair_stored_message
from repertory.core.orchestration.document import document_of
from repertory.core.provider_parts import manager_as_ours, manager_with_texts, with_texts_of_parts
from repertory.core.turns.interrupt_state import documented_state
from repertory.core.window.decision import DEFAULT_MANAGER, own_state
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import View
    from repertory.core.orchestration.run import Run

OURS = "repertory"
ERASED_TEXT = "[erased]"
_TRACKING = "tracking_id"


class FoundMessage(Struct, frozen=True, kw_only=True):
    """A message of another program, as read."""

    message: Message | None = None
    """The message; None when it cannot be read."""
    at: float = 0.0
    """The time of the message, in epoch seconds."""
    fault: str | None = None
    """The reason why the message cannot be read."""


class AgentFile(Struct, frozen=True, kw_only=True):
    """An agent's document, as read."""

    state: Mapping[str, Json]
    manager: Mapping[str, Json]
    model_state: Mapping[str, Json]
    interrupts: Mapping[str, Json] = {}
    """The state of a turn that waits for a person; see `core/turns/interrupt_state.py`."""
    created_at: str

    @property
    def asks(self) -> bool:
        """True if it says that the turn waits for a person."""
        return bool(self.interrupts.get("activated"))


def session_document(session_id: str, at: float) -> bytes:
    """`session.json`."""
    when = iso(at)
    return to_file({"session_id": session_id, "session_type": "AGENT", "created_at": when, "updated_at": when})


def message_fields(number: int, message: Message, at: float, *, redacted: bool) -> dict[str, object]:
    """`message_<number>.json`, before encoding. `redacted`: the message stands for one that was erased."""
    when, documented = iso(at), with_texts_of_parts(message)
    return {
        "message": documented,
        "message_id": number,
        "redact_message": documented if redacted else None,
        "created_at": when,
        "updated_at": when,
    }


def replaced_message(fields: Mapping[str, object], message: Message, at: float) -> dict[str, object]:
    """The fields of a message's document with another message in the place of what was erased."""
    tracking_id = tracking_id_of(fields.get("message"))
    documented = with_texts_of_parts(message if tracking_id is None else under_tracking_id(message, tracking_id))
    return {**fields, "message": documented, "redact_message": documented, "updated_at": iso(at)}


def message_in(row: Row) -> Message | None:
    """The message in a row; None for other rows, and for rows that this release cannot read."""
    if row.kind != RecordKind.MESSAGE or row.erased:
        return None
    try:
        value = load(row.body)
        return repair_stored_message(value["message"]) if isinstance(value, dict) else None
    except (ValueError, KeyError, Invalid):
        return None


def tracked(message: Message, link: bytes) -> Message:
    """The message with a tracking id: its own, or one made from the row's unique link."""
    if _TRACKING in message:
        return message
    text = link.hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return under_tracking_id(message, f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}")


def tracking_id_of(message: object) -> str | None:
    """The tracking id in a document's message; None without one."""
    found = cast("dict[str, object]", message).get(_TRACKING) if isinstance(message, dict) else None
    return found if isinstance(found, str) else None


def under_tracking_id(message: Message, tracking_id: str) -> Message:
    """The message under another tracking id."""
    return cast("Message", {**message, _TRACKING: tracking_id})


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
) -> bytes:
    """`agent.json`. `removed`: the number of message documents before the first one shown. `times`: those of the first
    document, unless `found` says it, and of this one.
    """
    view, state = fold.shown.view, dict(fold.state)
    manager = manager_fields(view, manager_named(view, found), removed, found.manager if found is not None else {})
    model_state = dict(found.model_state) if found is not None else {}
    document = {
        "agent_id": agent_id,
        "state": state,
        "conversation_manager_state": manager_with_texts(manager),
        "_internal_state": {
            "interrupt_state": documented_state(pending_tools_of(fold)),
            "model_state": model_state,
        },
        "created_at": found.created_at if found is not None else iso(times[0]),
        "updated_at": iso(times[1]),
    }
    return to_file(document)


def read_agent(body: bytes) -> AgentFile | None:
    """An agent's document; None when it cannot be read."""
    try:
        fields = decoded(parsed(body))
    except ValueError:
        return None
    internal = _mapping(fields.get("_internal_state"))
    manager = manager_as_ours(_mapping(fields.get("conversation_manager_state")))
    return AgentFile(
        state=_mapping(fields.get("state")),
        manager=cast("Mapping[str, Json]", manager),
        model_state=_mapping(internal.get("model_state")),
        interrupts=_mapping(internal.get("interrupt_state")),
        created_at=str(fields.get("created_at")),
    )


def _mapping(value: object) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


class RunFile(Struct, frozen=True, kw_only=True):
    """The document of a graph or swarm, as read."""

    document: Mapping[str, Json]
    digest: str
    """The digest of the document's content."""


def run_file(run: Run, orchestrator_id: str) -> bytes:
    """`multi_agent.json`."""
    return to_file(document_of(run, orchestrator_id))


def read_run_file(body: bytes, orchestrator_id: str) -> RunFile:
    """The document from a file, from any program. Errors: `ValueError` when it cannot be read or belongs to another
    orchestrator.
    """
    document = parsed(body)
    document.pop(OURS, None)
    if document.get("id") != orchestrator_id:
        raise ValueError(f"it is about another orchestrator: {document.get('id')!r}")
    return RunFile(document=cast("dict[str, Json]", decoded(document)), digest=digest_of_document(document))
