"""The fields of an agent's snapshot, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.pending_tools import PendingTools
from repertory.core.journal.records import Branched, MessageAdded, Record, View
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.messages import SystemPrompt, check_messages, check_system_prompt, repair
from repertory.core.turns.interrupt_state import read_state, records_between
from repertory.core.window.decision import is_summary
from repertory.core.window.editing import manual_records
from repertory.errors import Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json, Message

Preset = Literal["session"]
SESSION_FIELDS = ("messages", "state", "conversation_manager_state", "interrupt_state", "model_state")
"""The fields of the preset `session`, the default of a snapshot."""
ALL_FIELDS = (*SESSION_FIELDS, "system_prompt", "enabled_tools", "components")


class NamedTurn(NamedTuple):
    """The last turn of a conversation, with its idempotency token."""

    token: str
    messages: int
    """The number of last messages that belong to it."""


class SnapshotFields(Struct, frozen=True, kw_only=True):
    """The content of a snapshot. A field that it does not hold is None."""

    messages: Sequence[Message] | None = None
    """The messages shown to the model, a summary included."""
    turn: NamedTurn | None = None
    """The last turn, when its caller may call it again."""
    state: Mapping[str, Json] | None = None
    manager: Mapping[str, Json] | None = None
    """The conversation manager's class as `__name__`, its counters and its own state."""
    interrupts: Mapping[str, Json] | None = None
    """The state of a turn that was cut off among its tools."""
    system_prompt: SystemPrompt = None
    enabled_tools: Sequence[str] | None = None
    components: Mapping[str, Json] = {}
    names: frozenset[str] = frozenset()
    """The names of the fields that it holds."""
    created_at: float = 0.0
    """Epoch seconds."""


def fields_wanted(
    preset: str | None, include: Collection[str] | None, exclude: Collection[str] | None
) -> frozenset[str]:
    """The fields to include: those of the preset and of `include`, without those of `exclude`.

    Errors: `SnapshotException` for an unknown preset or field, and when nothing is left.
    """
    if preset not in (None, "session"):
        raise SnapshotException("a preset is 'session'", got=preset)
    for name in (*(include or ()), *(exclude or ())):
        if name not in ALL_FIELDS:
            raise SnapshotException(f"Invalid snapshot field: {name!r}", known=sorted(ALL_FIELDS))
    wanted = {*(SESSION_FIELDS if preset else ()), *(include or ())} - set(exclude or ())
    if not wanted:
        raise SnapshotException("No snapshot fields resolved: give a preset, or at least one field to include")
    return frozenset(wanted)


def fields_of(fields: Mapping[str, Json], created_at: float) -> SnapshotFields:
    """The fields by the names of `ALL_FIELDS`, with bytes decoded. Errors: `SnapshotException` with the fault."""
    unknown = fields.keys() - set(ALL_FIELDS)
    if unknown:
        raise SnapshotException("a snapshot with unknown fields", fields=sorted(unknown))
    try:
        return SnapshotFields(
            messages=_messages(fields["messages"]) if "messages" in fields else None,
            state=object_field(fields, "state"),
            manager=object_field(fields, "conversation_manager_state"),
            interrupts=object_field(fields, "interrupt_state"),
            system_prompt=check_system_prompt(cast("SystemPrompt", fields.get("system_prompt"))),
            enabled_tools=_names(fields.get("enabled_tools")),
            components=object_field(fields, "components") or {},
            names=frozenset(fields),
            created_at=created_at,
        )
    except SnapshotException:
        raise
    except Invalid as error:
        raise SnapshotException("the content of a snapshot cannot be read", cause=str(error)) from error


def object_field(fields: Mapping[str, Json], name: str) -> Mapping[str, Json] | None:
    """One field as an object. Errors: `SnapshotException`."""
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise SnapshotException(f"the {name} of a snapshot is a JSON object", got=type(value).__name__)
    return value


def _messages(found: object) -> Sequence[Message]:
    if not isinstance(found, list):
        raise SnapshotException("the messages of a snapshot are a list", got=type(found).__name__)
    return check_messages(cast("list[object]", found))


def _names(found: object) -> Sequence[str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in cast("list[object]", found)):
        raise SnapshotException("the enabled tools of a snapshot are a list of names")
    return cast("list[str]", found)


# Restoring a snapshot: the records after which a journal shows what the snapshot shows.
#
# The conversation goes back to the last message that both have, or to its beginning, and on with the snapshot's
# messages. The messages after that point stay in the journal, hidden.


def restoring(image: Image, wanted: SnapshotFields, at: float) -> list[Record]:
    """The records to append to the journal whose image is `image`. Fields missing from the snapshot stay as they are.
    Errors: `Invalid`.
    """
    messages = list(repair(wanted.messages)) if wanted.messages is not None else [message for _, message in image.shown]
    summary, messages = _split_summary(messages, wanted.manager)
    named = len(messages) if wanted.turn is None else max(len(messages) - wanted.turn.messages, 0)
    common, last = _in_common(image, messages[:named]) if image.view.summary == summary else (0, 0)
    view = _view(image, summary, last, wanted.manager)
    state = image.state if wanted.state is None else wanted.state
    branched = Branched(
        at=at,
        position=last,
        last=last,
        message_count=image.message_count,
        turns=image.turns,
        run=image.run,
        view=view,
        state=dict(state),
        name="a snapshot",
    )
    before = messages[common - 1] if common else None
    added = list(manual_records(messages[common:named], before, turn=image.turns, index=image.message_count, at=at))
    if wanted.turn is not None:
        added += _named_turn(image, added, messages[named:], wanted.turn.token, at)
    end = messages[-1] if messages else None
    pending = read_state(wanted.interrupts, end)
    return [branched, *added, *records_between(PendingTools(last=end), pending, at)]


def _in_common(image: Image, messages: Sequence[Message]) -> tuple[int, int]:
    """The number of leading messages that the journal shows too, and the sequence number of the last of them.

    (0, 0) when they differ among the pinned messages: those have no position to go back to.
    """
    ours = [entry for entry in image.shown if entry[0] != SUMMARY_SEQ]
    common = 0
    for (_, own_message), message in zip(ours, messages, strict=False):
        # Without metadata, which other programs drop.
        if own_message["role"] != message["role"] or own_message["content"] != message["content"]:
            break
        common += 1
    # The position to go back to is that of a row, and pinned messages are shown out of their place.
    if common <= len(image.view.pinned):
        return 0, 0
    return common, ours[common - 1][0]


def _view(image: Image, summary: Message | None, last: int, manager: Mapping[str, Json] | None) -> View:
    was = image.view
    name, manager_state = was.manager, dict(was.manager_state)
    if manager is not None:
        manager_state = {key: value for key, value in manager.items() if key not in ("__name__", "summary_message")}
        named = manager.get("__name__")
        name = named if isinstance(named, str) else was.manager
    if not last:
        return View(summary=summary, manager=name, manager_state=manager_state)
    return replace(
        was,
        replaced={seq: message for seq, message in was.replaced.items() if seq <= last},
        hidden=tuple(seq_range for seq_range in was.hidden if seq_range[1] <= last),
        summary=summary,
        manager=name,
        manager_state=manager_state,
    )


def _named_turn(
    image: Image, added: Sequence[MessageAdded], messages: Sequence[Message], token: str, at: float
) -> Iterator[MessageAdded]:
    last = added[-1] if added else None
    turn, index = (image.turns, image.message_count) if last is None else (last.turn, last.index + 1)
    for index_in_prompt, message in enumerate(messages):
        name = None if index_in_prompt else token
        yield MessageAdded(at=at, message=message, turn=turn + 1, index=index + index_in_prompt, idempotency_token=name)


def _split_summary(messages: list[Message], manager: Mapping[str, Json] | None) -> tuple[Message | None, list[Message]]:
    """The summary before the messages, ours or another program's; and the rest."""
    first = messages[0] if messages else None
    if first is None:
        return None, messages
    summary = (manager or {}).get("summary_message")
    if is_summary(first) or (isinstance(summary, dict) and summary.get("content") == first["content"]):
        return first, messages[1:]
    return None, messages
